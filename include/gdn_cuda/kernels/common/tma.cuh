// TMA loads and stores (sm_90) of rank-4 tiles with 128-byte rows, swizzled as in shared.cuh.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>

namespace gdn_cuda {

struct TileAt {
    int element, head, token, batch;
};

__device__ __forceinline__ void tma_load(void* shared, const TensorMap& map, const TileAt& at, Barrier& full) {
    constexpr auto kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<uint64_t*>(&full), kHint, shared, at.element, at.head, at.token,
                                 at.batch);
}

// Adds the store to the thread's open bulk group. Elements outside the tensor are not written.
__device__ __forceinline__ void tma_store(const TensorMap& map, const TileAt& at, const void* shared) {
    cute::SM90_TMA_STORE_4D::copy(&map, shared, at.element, at.head, at.token, at.batch);
}

}  // namespace gdn_cuda
