// gdn/kda_own: Kimi Delta Attention from prepared records (kda/record.cuh): blocks that own 64 rows of a sequence and head's
// state take it from chunk to chunk, and compute the outputs.
//
//     records -> stages (3)      loads and stores | outputs | chain S -> X -> S
//
// Every matrix of a record is a right operand as it is; S and X are left operands in registers. Where entries of T cancel, Z
// and P' have rounding residuals, which take the place of K_in and Q_in once these have been multiplied.
//
// Bound: latency of the chain's two products and of the rounding between them. On an H200 a chunk takes 1.3 to 2.2 us
// (benchmarks/kda_launches.py, ba9820ef).
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/gdn/kda/chain.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>
#include <gdn_cuda/kernels/gdn/kda/outputs.cuh>

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

template <KdaOwnConfig kOwnConfig>
__global__ void __launch_bounds__(kOwnConfig.threads(), 1) kda_own(const __grid_constant__ KdaOwnArgs args) {
    constexpr ChunkedConfig kConfig = kOwnConfig.block();
    using Plan = KdaOwnerPlan<kConfig>;
    static_assert(sizeof(Plan) <= 227 * 1024);
    extern __shared__ __align__(1024) unsigned char memory[];
    Plan& shared = *reinterpret_cast<Plan*>(memory);
    const int pair = static_cast<int>(blockIdx.x) / args.row_tiles;
    ChunkedBlock<kConfig> block(args.chunked, pair, static_cast<int>(blockIdx.x) - pair * args.row_tiles);
    block.finish_without_chunks();
    if (block.place != Place::run || block.chunks == 0) return;
    if (threadIdx.x == 0) {
        block.plan_outputs(shared.work, 0, block.chunks);
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
        KdaLoader<kConfig>{shared, args.chunked, KdaRecords(args, block.sequence, block.head, block.span, block.chunks)}.run(
            warp);
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
