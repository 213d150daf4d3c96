// gdn/prefill: the chunked form of Gated Delta Net on Hopper's tensor cores, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j) for i > j      T = (I + A)^-1 diag(beta)
//     V' = T (v - exp(G) k S^T)                             P_ij = scale (q_i.k_j) exp(G_i - G_j) for i >= j
//     o = scale exp(G) q S^T + P V'                         S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// A block takes one segment of a sequence, one value head and 64 rows of the state S per value warpgroup. Rows of S are
// independent, so a value warpgroup keeps its rows in registers for the whole segment and computes everything transposed: S
// k^T, S q^T, X^T T^T, V'^T P^T and V'^T k have S, X or V' as the left operand, in registers, and keys, queries, T or P as the
// right one, in shared memory as TMA left them. Two helper roles run ahead: one warpgroup issues the TMA loads and forms P,
// others invert I + A. Norms, gates and scale are applied as row and column factors; q, k and v are never rewritten.
//
// Most blocks take one pass. Where states cross segment borders, earlier passes compute and link segment summaries
// (prefill_segments.cuh). A chunk whose gates reset the state and that holds infinities or NaN is taken token by token
// (prefill_reset.cuh). With three waves of blocks or more, the grid is persistent: one block per SM takes sequences
// one after another (prefill_items.cuh).
//
// Bound: latency around the cycle of roles, and instruction issue; tensor cores are busy half of the time. On an H200 filled
// with sequences, 53 to 62 % of the roofline (docs/benchmarks/prefill.md; why: docs/kernels/gdn_prefill.md).
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/chunked/inverse.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>
#include <gdn_cuda/kernels/chunked/scores.cuh>
#include <gdn_cuda/kernels/gdn/prefill/values.cuh>

namespace gdn_cuda::gdn {

// One role's loop over the block's passes, if it may have several; the kPrepares role sets up each next pass for all.
template <class Role, bool kPrepares, PrefillConfig kConfig>
__device__ __forceinline__ void run_passes(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
#pragma unroll 1
    while (true) {
        Role(shared, args).run();
        if (!kConfig.linked || shared.passes_left == 0) break;
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        if (kPrepares && threadIdx.x == 0) {
            shared.work = shared.passes[--shared.passes_left];
            set_barriers<false>(shared);
        }
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
    }
}

template <PrefillConfig kConfig>
__device__ __forceinline__ void run_block(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    PrefillBlock<kConfig> block(args, shared);
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
        run_passes<PrefillScores<kConfig>, true>(shared, args);
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        run_passes<PrefillInverse<kConfig>, false>(shared, args);
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_passes<PrefillValues<kConfig>, false>(shared, args);
    }
}

// One role's loop over the block's items. Shuffled, the first chunk is warp-uniform for the compiler; operands' descriptors
// would leave the uniform registers otherwise.
template <class Role, PrefillConfig kConfig>
__device__ __forceinline__ void run_items(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
#pragma unroll 1
    for (int number = 0;; ++number) {
        const PrefillItem& item = slot_of(shared.items, number);
        if (item.chunks == PrefillItem::kNone) break;
        Role(shared, args, item).run(__shfl_sync(0xffffffffu, item.first, 0));
    }
}

// A persistent block.
template <PrefillConfig kConfig>
__device__ __forceinline__ void run_persistent(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    finish_items_without_chunks<kConfig>(args);
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            shared.items.begun = shared.items.planned = shared.items.planned_chunks = 0;
            shared.items.next = static_cast<int>(blockIdx.x);
            set_barriers<true>(shared);
        }
        __syncwarp();
        plan_item(shared, args);
        plan_items(shared, args);
    }
    clear_matrices<kConfig>(shared);
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        PrefillScores<kConfig>(shared, args).run();
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        PrefillInverse<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_items<PrefillValues<kConfig>>(shared, args);
        if (threadIdx.x % kWarpgroup == 0) cute::tma_store_wait<0>();
    }
}

template <PrefillConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill(const __grid_constant__ PrefillArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);

    if constexpr (kConfig.persistent) return run_persistent<kConfig>(shared, args);
    // Two launches run concurrently: one of them does the work, or each takes its sequences. One block of the second waits for
    // the first to end, so that later work in the stream waits for both.
    if (is_first_of_two(args.takes)) launch_dependent_grids();
    run_block<kConfig>(shared, args);
    if (is_second_of_two(args.takes) && blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
