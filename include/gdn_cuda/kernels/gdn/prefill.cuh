// gdn/prefill: the chunked form of Gated Delta Net on Hopper's tensor cores, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j) for i > j      T = (I + A)^-1 diag(beta)
//     V' = T (v - exp(G) k S^T)                             P_ij = scale (q_i.k_j) exp(G_i - G_j) for i >= j
//     o = scale exp(G) q S^T + P V'                         S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// A block takes a segment of a sequence, a value head and 64 rows of the state for each of its value warpgroups. Rows of S
// never meet, so a value warpgroup keeps its rows in registers from the first chunk to the last and computes everything
// transposed: S k^T, S q^T, X^T T^T, V'^T P^T and V'^T k have S, X or V' on the left, in registers, and keys, queries, T or P
// on the right, in shared memory as they came. Helper warpgroups run ahead: one has chunks brought (TMA) and forms P, others
// invert I + A. Norms, gates and scale are factors of rows and columns, so q, k and v are never rewritten.
//
// Most blocks take their segment in one pass. Where states reach across segments, passes before it make and link summaries of
// segments (prefill_segments.cuh). A chunk whose gates reset the state, with infinities or NaN in it, is taken token by token
// (prefill_reset.cuh).
//
// Bound: latency round the ring of roles, and instructions: the tensor cores are busy half of the time. On an H200, where
// sequences fill it, 54 to 59 % of the roof (docs/benchmarks/prefill.md; why: docs/kernels/gdn_prefill.md).
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_block.cuh>
#include <gdn_cuda/kernels/gdn/prefill_inverse.cuh>
#include <gdn_cuda/kernels/gdn/prefill_scores.cuh>
#include <gdn_cuda/kernels/gdn/prefill_values.cuh>

namespace gdn_cuda::gdn {

// By one thread; nobody else is at the barriers.
template <bool kFirst, PrefillConfig kConfig>
__device__ __forceinline__ void set_barriers(PrefillSharedPlan<kConfig>& shared) {
    const auto set = [](unsigned long long& word, int arrivals) {
        if (!kFirst) barrier(word).invalidate();
        barrier(word).init(arrivals);
    };
#pragma unroll
    for (int i = 0; i < kConfig.stages; ++i) {
        set(shared.loaded[i], 3 + 32);  // keys, queries and values, and a warp's scalars
        set(shared.factored[i], kWarpgroup);
        set(shared.ready[i], 2 * kWarpgroup);
        set(shared.done[i], kConfig.value_groups * 4);
    }
#pragma unroll
    for (auto& word : shared.walked) set(word, kWarpgroup);
    set(shared.linked, 1);
    cutlass::arch::fence_barrier_init();
}

// Programmatic dependent launch (sm_90): lets the next launch start, and waits for the end of the one before. CUTLASS's are
// empty unless the whole build defines CUTLASS_ENABLE_GDC_FOR_SM90, and come with the dispatch policies of its GEMMs.
__device__ __forceinline__ void launch_dependent_grids() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_on_dependent_grids() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// A role's part of every pass; one role prepares the next for all.
template <class Role, bool kPrepares, PrefillConfig kConfig>
__device__ __forceinline__ void run_passes(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
#pragma unroll 1
    while (true) {
        Role(shared, args).run();
        if (shared.passes_to_come == 0) break;
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        if (kPrepares && threadIdx.x == 0) {
            shared.work = shared.passes[--shared.passes_to_come];
            set_barriers<false>(shared);
        }
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
    }
}

template <PrefillConfig kConfig>
__device__ __forceinline__ void run_block(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    PrefillBlock<kConfig> block(args);
    if (!block.find_start(shared.factors[0].gate)) return;
    if (threadIdx.x == 0) {
        block.plan_passes(shared);
        set_barriers<true>(shared);
    }
    constexpr int kPieces = sizeof(shared.matrices) / sizeof(uint4);
    for (int i = threadIdx.x; i < kPieces; i += kConfig.threads()) reinterpret_cast<uint4*>(shared.matrices)[i] = {};
    cutlass::arch::fence_view_async_shared();
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // known to be the same for a whole warp
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

template <PrefillConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill(const __grid_constant__ PrefillArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);

    // Of two launches one takes the call, and they start side by side. A block of the second ends after the first, so that what
    // follows in the stream waits for both.
    if (args.takes == PrefillTakes::if_all_forget) launch_dependent_grids();
    run_block<kConfig>(shared, args);
    if (args.takes == PrefillTakes::if_one_remembers && blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
