// Tiles of rank-4 tensors between global and shared memory through the copy engine (sm_90). Rows of 128 bytes,
// swizzled as shared.cuh has them.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>

namespace gdn_cuda {

struct TileAt {
    int element, head, token, batch;
};

__device__ __forceinline__ void load_tile(void* shared, const TensorMap& map, const TileAt& at, Barrier& arrived) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(&arrived.state)), "r"(at.element), "r"(at.head), "r"(at.token), "r"(at.batch)
        : "memory");
}

// Joins the thread's open bulk group; what lies outside the tensor is not written.
__device__ __forceinline__ void store_tile(const TensorMap& map, const TileAt& at, const void* shared) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(shared_address(shared)), "r"(at.element), "r"(at.head), "r"(at.token), "r"(at.batch)
                 : "memory");
}
__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the stores of this thread have read their shared memory.
__device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace gdn_cuda
