// How a block runs: its roles, with their registers, over the passes of one segment or over work tiles one after another.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/chunked/inverse.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>
#include <gdn_cuda/kernels/chunked/scores.cuh>

namespace gdn_cuda::gdn {

// One role's loop over the block's passes, if it may have several; the kPrepares role sets up each next pass for all. By then
// every role has ended its phases of all mbarriers, which are initialised anew.
template <class Role, bool kPrepares, ChunkedConfig kConfig>
__device__ __forceinline__ void run_passes(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
#pragma unroll 1
    while (true) {
        Role(shared, args).run();
        if (!kConfig.chained || shared.passes_left == 0) break;
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        if (kPrepares && threadIdx.x == 0) {
            shared.work = shared.passes[--shared.passes_left];
            set_barriers<false>(shared);
        }
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
    }
}

// A block that takes one segment. Values: the rule's value role.
template <template <ChunkedConfig> class Values, ChunkedConfig kConfig>
__device__ __forceinline__ void run_block(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    ChunkedBlock<kConfig> block(args, shared);
    if (!block.find_start(shared.factors[0].gate)) return;
    if (threadIdx.x == 0) {
        block.plan_passes(shared);
        set_barriers<true>(shared);
    }
    clear_matrices<kConfig>(shared);
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        run_passes<ScoresRole<kConfig>, true>(shared, args);
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        run_passes<InverseRole<kConfig>, false>(shared, args);
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_passes<Values<kConfig>, false>(shared, args);
    }
}

// The value role's loop over the block's work tiles.
template <class Role, ChunkedConfig kConfig>
__device__ __forceinline__ void run_work_tiles(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
#pragma unroll 1
    for (int index = 0;; ++index) {
        const WorkTile& work_tile = slot_at(shared.work_tiles, index);
        if (work_tile.tokens.chunks == WorkTile::kNone) break;
        Role(shared, args, work_tile).run();
    }
}

// A block that takes work tiles one after another.
template <template <ChunkedConfig> class Values, ChunkedConfig kConfig>
__device__ __forceinline__ void run_persistent(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    finish_work_tiles_without_chunks<kConfig>(args);
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            shared.work_tiles.begun = shared.work_tiles.planned = shared.work_tiles.planned_chunks = 0;
            shared.work_tiles.next = static_cast<int>(blockIdx.x);
            set_barriers<true>(shared);
        }
        __syncwarp();
        plan_work_tile(shared, args);
        plan_work_tiles(shared, args);
    }
    clear_matrices<kConfig>(shared);
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        ScoresRole<kConfig>(shared, args).run();
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        InverseRole<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_work_tiles<Values<kConfig>>(shared, args);
        if (threadIdx.x % kWarpgroup == 0) cute::tma_store_wait<0>();
    }
}

}  // namespace gdn_cuda::gdn
