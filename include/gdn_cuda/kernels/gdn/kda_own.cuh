// gdn/kda_own: Kimi Delta Attention from the prepared records (kda/record.cuh) of a window of chunks: blocks that own 64 rows
// of a sequence and head's state take it from chunk to chunk, and compute the outputs.
//
//     records -> stages (3)      loads and stores | outputs | chain S -> X -> S
//
// Every matrix of a record is a right operand as it is; S and X are left operands in registers. Where entries of T cancel, Z
// and P' have rounding residuals, which take the place of K_in and Q_in once these have been multiplied.
//
// Bound: the chain's own instructions, 480 a chunk by one warp of a scheduler; it waits for neither of its products (ncu). On
// an H200 a chunk takes 1.2 to 1.5 us (benchmarks/kda_launches.py, 9415cb52), with 128 blocks as long as memory takes for
// records.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/kda/chain.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>
#include <gdn_cuda/kernels/gdn/kda/outputs.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_item.cuh>

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
    for (auto* word : {&shared.residual_full, &shared.tail_full}) barrier(*word).init(1);
    cutlass::arch::fence_barrier_init();
}

// By one thread.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void plan_item(ChunkedBlock<kConfig>& block, KdaOwnerPlan<kConfig>& shared) {
    const KdaOwnItem& item = shared.item;
    ChunkedWork& work = shared.work;
    block.plan_outputs(work, item.first, item.last);
    if (item.rows != KdaOwnRows::outputs) work.tokens.first_output = work.tokens.chunks;
    if (item.rows == KdaOwnRows::transition) {
        work.first_value = block.call.dv;  // past all values, where TMA fills with zeros
        work.rows = block.call.dk;
    }
}

template <KdaOwnConfig kOwnConfig>
__global__ void __launch_bounds__(kOwnConfig.threads(), 1) kda_own(const __grid_constant__ KdaOwnArgs args) {
    constexpr ChunkedConfig kConfig = kOwnConfig.block();
    using Plan = KdaOwnerPlan<kConfig>;
    static_assert(sizeof(Plan) <= 227 * 1024);
    extern __shared__ __align__(1024) unsigned char memory[];
    Plan& shared = *reinterpret_cast<Plan*>(memory);
    wait_on_dependent_grids();
    KdaOwnItem item;
    if (!find_kda_item(args, static_cast<int>(blockIdx.x), item)) return;
    ChunkedBlock<kConfig> block(args.chunked, 0, item.sequence, 0, item.head, item.row_tile);
    if (item.first == 0) block.finish_without_chunks();
    if (block.place != Place::run || item.first >= item.last) return;
    if (threadIdx.x == 0) {
        shared.item = item;
        plan_item(block, shared);
        shared.by_tokens = false;
        set_barriers(shared);
    }
    __syncthreads();
    // setmaxnreg: 512 registers a lane of four warpgroups.
    constexpr int kLoading = 40, kIdle = 24, kOutputs = 200, kChain = 232;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kLoading>();
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        KdaLoader<kConfig>{shared, args.chunked, KdaRecords(args, item.sequence, item.head, block.span, item.first)}.run(warp);
    } else if (group == 1) {
        cutlass::arch::warpgroup_reg_alloc<kOutputs>();
        KdaOutputs<kConfig>(shared, args.chunked).run();
    } else if (group == 2) {
        cutlass::arch::warpgroup_reg_dealloc<kIdle>();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kChain>();
        KdaChain<kConfig>(shared, args.chunked).run();
    }
}

}  // namespace gdn_cuda::gdn
