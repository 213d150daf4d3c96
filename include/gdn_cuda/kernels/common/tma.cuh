// TMA loads and stores (sm_90) of rank-4 tiles with 128-byte rows, swizzled as in shared.cuh.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>

namespace gdn_cuda {

struct TileAt {
    int element, head, token, batch;
};

// Inline PTX: cute::SM90_TMA_LOAD_4D always passes a cache hint, two more uniform moves per load.
__device__ __forceinline__ void tma_load(void* shared, const TensorMap& map, const TileAt& at, Barrier& arrived) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(&arrived)), "r"(at.element), "r"(at.head), "r"(at.token), "r"(at.batch)
        : "memory");
}

// Joins the thread's open bulk group; elements outside the tensor are not written.
__device__ __forceinline__ void tma_store(const TensorMap& map, const TileAt& at, const void* shared) {
    cute::SM90_TMA_STORE_4D::copy(&map, shared, at.element, at.head, at.token, at.batch);
}

}  // namespace gdn_cuda
