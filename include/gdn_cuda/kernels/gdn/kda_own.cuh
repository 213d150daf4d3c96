// gdn/kda_own: Kimi Delta Attention from the prepared records (kda/record.cuh) of a window of chunks: blocks that own 64 rows
// of a sequence and head's state take it from chunk to chunk, and compute the outputs; then they take other rows. A block has a
// multiprocessor to itself.
//
//     records -> stages (3)      loads and stores | outputs | plans work tiles | chain S -> X -> S
//
// The pipeline of chunks goes on from work tile to work tile: roles wait for each other by chunk, and for the next plan.
//
// Every matrix of a record is a right operand as it is; S and X are left operands in registers. Where entries of T cancel, Z
// and P' have rounding residuals, which take the place of K_in and Q_in once these have been multiplied.
//
// Bound: the chain's own instructions, 450 a chunk by one warp of a scheduler; it waits for neither of its products (ncu). On
// an H200 a chunk takes 1.2 to 1.5 us (benchmarks/kda_launches.py, c14b6183); with 128 blocks memory takes as long for records,
// at 80 % of its throughput. A block has some 8 us beside its chunks, and less for each further work tile: the chain stores a
// state and loads the next.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/kda/chain.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>
#include <gdn_cuda/kernels/gdn/kda/outputs.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_planner.cuh>

namespace gdn_cuda::gdn {

// By one thread.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void set_barriers(KdaOwnerPlan<kConfig>& shared) {
    for (auto& word : shared.stage_full) barrier(word).init(2);       // record; values
    for (auto& word : shared.stage_empty) barrier(word).init(4 + 1);  // warps of the chain; the thread that stores outputs
    for (auto& word : shared.output_full) barrier(word).init(4);
    for (auto* word :
         {&shared.state_full, &shared.state_empty, &shared.products_queued, &shared.values_full, &shared.values_empty})
        barrier(*word).init(4);
    barrier(shared.tiles_read).init(2 * 4);  // warps of the chain and of the outputs
    for (auto* word : {&shared.residual_full, &shared.tail_full, &shared.next_wanted}) barrier(*word).init(1);
    for (auto& word : shared.work_full) barrier(word).init(1);
    for (auto& word : shared.work_empty) barrier(word).init(3 * 4);  // warps that load, of the outputs and of the chain
    cutlass::arch::fence_barrier_init();
}

// A role's work tiles, one after another. `run` takes what it returned before, at first 0.
template <ChunkedConfig kConfig, class Run>
__device__ __forceinline__ void for_each_work_tile(KdaOwnerPlan<kConfig>& shared, Run&& run) {
    unsigned residual_parity = 0;
#pragma unroll 1
    for (int index = 0;; ++index) {
        const KdaOwnWork& work = wait_for_work(shared, index);
        if (work.is_none()) break;
        residual_parity = run(work, residual_parity);
        release_work(shared, index);
    }
}

// A block's roles, once barriers are set. first: its first work tile; kWaits: as KdaLoader has it.
template <ChunkedConfig kConfig, bool kWaits>
__device__ __forceinline__ void run_kda_owner(KdaOwnerPlan<kConfig>& shared, const KdaOwnArgs& args, int first, int blocks) {
    // setmaxnreg: 512 registers a lane of four warpgroups.
    constexpr int kLoading = 40, kPlanning = 48, kOutputs = 192, kChain = 232;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kLoading>();
        KdaLoader<kConfig, kWaits>{shared, args}.run(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
    } else if (group == 1) {
        cutlass::arch::warpgroup_reg_alloc<kOutputs>();
        for_each_work_tile(shared, [&](const KdaOwnWork& work, unsigned residual_parity) {
            return KdaOutputs<kConfig>(shared, args.chunked, work, residual_parity).run();
        });
    } else if (group == KdaPlanner<kConfig>::kGroup) {
        cutlass::arch::warpgroup_reg_dealloc<kPlanning>();
        KdaPlanner<kConfig>{shared, args, first, blocks}.run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kChain>();
        for_each_work_tile(shared, [&](const KdaOwnWork& work, unsigned residual_parity) {
            return KdaChain<kConfig>(shared, args.chunked, work, residual_parity).run();
        });
    }
}

template <KdaOwnConfig kOwnConfig>
__global__ void __launch_bounds__(kOwnConfig.threads(), 1) kda_own(const __grid_constant__ KdaOwnArgs args) {
    constexpr ChunkedConfig kConfig = kOwnConfig.block();
    using Plan = KdaOwnerPlan<kConfig>;
    static_assert(sizeof(Plan) <= 227 * 1024);
    extern __shared__ __align__(1024) unsigned char memory[];
    Plan& shared = *reinterpret_cast<Plan*>(memory);
    if (threadIdx.x == 0) {
        shared.by_tokens = false;
        set_barriers(shared);
    }
    __syncthreads();
    wait_on_dependent_grids();
    run_kda_owner<kConfig, false>(shared, args, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace gdn_cuda::gdn
