// gdn/prefill_ahead: gdn/prefill's chunked form where unsplit heads leave SMs idle. What does not depend on the state, T and P
// of a chunk and its factors, is computed by blocks of their own, which run ahead:
//
//     blocks that prepare       scores | inverse | inverse -> cached chunks in global memory
//     blocks that own 64 rows   loads, stores | outputs | chain S -> V' -> S
//
// A sequence is one chain of chunks: the time from one S to the next, times the chunks, is the time of a call. In a block of
// gdn/prefill the owner of the state has its SM together with three warpgroups of helpers, and stores outputs between one S and
// the next. Here an owner has its SM to itself, and another warpgroup takes outputs off the chain. The bits are gdn/prefill's.
//
// Blocks that prepare wait for nobody, and come in the grid before those that own rows of the same sequence and head, so that a
// launch ends however few blocks are resident. The cache has room for a window of chunks; a longer sequence takes a
// launch a window, and fp32 states go from one to the next.
//
// Bound: latency of the chain's three products and of the rounding between them. On an H200 a chunk takes 2,100 cycles, in
// 1,024 of which the tensor cores are busy (docs/kernels/gdn_prefill_ahead.md).
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/cache.cuh>
#include <gdn_cuda/kernels/chunked/ahead/preparer.cuh>
#include <gdn_cuda/kernels/chunked/run.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/prefill_ahead/chain.cuh>
#include <gdn_cuda/kernels/gdn/prefill_ahead/outputs.cuh>

namespace gdn_cuda::gdn {

// index: the block's, among those of the pair that prepare.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void prepare_chunks(PreparerPlan<kConfig>& shared, const PrefillAheadArgs& args, int pair,
                                               int index) {
    const int first = args.first_chunk + index;
    run_roles<kConfig, true>(
        PreparerSchedule<kConfig, PrefillAheadArgs>{shared.block, args.prefill, args, pair, first}, [&](const auto&) {
            if (threadIdx.x % kWarpgroup < 32)
                CachedChunkStore<kConfig>{shared, CachedChunks<kConfig>(args, pair), first, args.preparers}.run();
        });
}

// A block that owns 64 rows of a pair's state.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void own_rows(OwnerPlan<kConfig>& shared, const PrefillAheadArgs& args, int pair, int row_tile) {
    ChunkedBlock<kConfig> block(args.prefill, pair, row_tile);
    bool decays_slowly;
    if (!block.takes_sequence() || !block.is_taken(decays_slowly, args.first_chunk == 0)) return;
    if (args.first_chunk == 0) block.finish_without_chunks();
    const int first = args.first_chunk, last = min(block.chunks, first + args.window);
    if (block.place != Place::run || first >= last) return;
    if (threadIdx.x == 0) {
        block.plan_outputs(shared.work, first, last);
        shared.by_tokens = false;
        for (auto& word : shared.stage_full) barrier(word).init(AheadLoader<kConfig>::kWarps);
        for (auto& word : shared.stage_empty) barrier(word).init(2 * 4);  // warps of the chain and of the outputs
        for (auto* word : {&shared.state_full, &shared.state_empty, &shared.products_queued, &shared.values_full,
                           &shared.values_empty, &shared.output_full})
            barrier(*word).init(4);
        for (auto* word : {&shared.output_empty, &shared.tail_full}) barrier(*word).init(1);
        cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    // setmaxnreg: 512 registers a lane of four warpgroups, as many as a block that prepares has.
    constexpr int kLoading = 40, kIdle = 24, kOutputs = 200, kChain = 232;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kLoading>();
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        if (warp == AheadLoader<kConfig>::kWarps) {
            if (threadIdx.x % 32 == 0) store_outputs<kConfig>(shared, args.prefill);
        } else {
            AheadLoader<kConfig>{shared, args.prefill, CachedChunks<kConfig>(args, pair), first}.run(warp);
        }
    } else if (group == 1) {
        cutlass::arch::warpgroup_reg_alloc<kOutputs>();
        run_outputs<kConfig>(shared, args.prefill);
    } else if (group == 2) {
        cutlass::arch::warpgroup_reg_dealloc<kIdle>();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kChain>();
        const GdnCall& call = args.prefill.call;
        GdnChain<kConfig>(shared, args.prefill, args.carried + static_cast<i64>(pair) * call.dv * call.dk).run();
    }
}

template <PrefillAheadConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill_ahead(const __grid_constant__ PrefillAheadArgs args) {
    constexpr ChunkedConfig kBlock = kConfig.block();
    extern __shared__ __align__(1024) unsigned char memory[];
    static_assert(sizeof(PreparerPlan<kBlock>) <= 227 * 1024 && sizeof(OwnerPlan<kBlock>) <= 227 * 1024);
    if (is_first_of_two(args.prefill.takes)) launch_dependent_grids();  // gdn/prefill is the second
    const int each = args.preparers + args.row_tiles, pair = static_cast<int>(blockIdx.x) / each,
              index = static_cast<int>(blockIdx.x) - pair * each;
    if (index < args.preparers)
        prepare_chunks<kBlock>(*reinterpret_cast<PreparerPlan<kBlock>*>(memory), args, pair, index);
    else
        own_rows<kBlock>(*reinterpret_cast<OwnerPlan<kBlock>*>(memory), args, pair, index - args.preparers);
}

}  // namespace gdn_cuda::gdn
