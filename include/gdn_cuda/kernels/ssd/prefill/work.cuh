// Where a block's tiles are, in global and in shared memory.
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>
#include <gdn_cuda/kernels/ssd/work.cuh>

namespace gdn_cuda::ssd {

// Where the tile from a token on begins, in x, z and out or in B and C.
__device__ __forceinline__ TileAt tile_at(const SsdWork& work, int token, int head, int element) {
    return {element, head, token, work.batch};
}

template <SsdConfig kConfig>
__device__ __forceinline__ typename SsdPlan<kConfig>::Stage& stage_at(SsdPlan<kConfig>& shared, int index) {
    return reinterpret_cast<typename SsdPlan<kConfig>::Stage&>(shared.stages[index]);
}

template <SsdConfig kConfig>
__device__ __forceinline__ bool outputs_at(const SsdWork& work, int step) {
    return kConfig.outputs && step >= work.first_own;
}

}  // namespace gdn_cuda::ssd
