// gdn/backward_gradients: gradients of queries, keys, betas and gates of a chunk, on Hopper's tensor cores. The formulas are
// those of gdn/backward_mma_gradients: what crosses chunks comes from the chains (backward/handover.cuh), so chunks are
// independent.
//
// A persistent block takes a chunk of a key head after another, and the value heads of each in slabs of 64 value columns:
//     loads    one thread issues TMA loads, up to two slabs ahead, and the next item's queries and keys
//     tokens   a warpgroup: dO R^T and dV R^T, summed over slabs; then dP and dA, which it puts into shared memory, and sums
//              of M for the gates; q k^T and k k^T are formed anew for each value head, as registers are short
//     columns  a warpgroup for each 64 columns of keys: dO S, dV S and R E of a slab, scaled and added to dq and dk, which stay
//              in registers over the value heads; then dP k, dP^T q, dA k and dA^T k
//     gates    a warp that adds the sums of a value head to its gradients
// Where T cancels, which is rare, R and dP have a second 16-bit part. Norms are factors of rows and columns.
//
// Bound: memory, and nearly as much the time of its roles. With r value heads a key head a token and value head need 1024 / r +
// 1808 bytes; on an H200 they move at 77 % of a copy's speed (docs/kernels/gdn_backward.md).
#pragma once

#include <gdn_cuda/kernels/gdn/backward_gradients/columns.cuh>
#include <gdn_cuda/kernels/gdn/backward_gradients/gates.cuh>
#include <gdn_cuda/kernels/gdn/backward_gradients/tokens.cuh>

namespace gdn_cuda::gdn {

template <HopperGradientsConfig kConfig>
__device__ __forceinline__ void set_barriers(HopperGradientsPlan<kConfig>& shared) {
    constexpr int kWarps = kConfig.consumer_warps();
#pragma unroll
    for (int i = 0; i < HopperGradientsPlan<kConfig>::kStages; ++i) {
        barrier(shared.tokens_full[i]).init(1);
        barrier(shared.tokens_empty[i]).init(kWarps + 1);  // and the gates role
        barrier(shared.slab_full[i]).init(1);
        barrier(shared.slab_empty[i]).init(kWarps);
        barrier(shared.sums_full[i]).init(kWarps);
        barrier(shared.head_done[i]).init(1);
    }
    barrier(shared.scores_full).init(kWarpgroup);
    barrier(shared.scores_empty).init(4 * kConfig.key_tiles);
    cutlass::arch::fence_barrier_init();
}

template <HopperGradientsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_gradients(const __grid_constant__ HopperGradientsArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<HopperGradientsPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);
    if (threadIdx.x == 0) set_barriers(shared);
    __syncthreads();

    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // warp-uniform for the compiler
    if (warp / 4 == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.loads_registers()>();
        if (threadIdx.x == 0) GradientsLoads<kConfig>(shared, args).run();
        if (warp == 1) GradientsGatesRole<kConfig>(shared, args).run();
    } else if (warp / 4 == kConfig.kTokensGroup) {
        cutlass::arch::warpgroup_reg_alloc<kConfig.tokens_registers()>();
        GradientsTokensRole<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.columns_registers()>();
        GradientsColumnsRole<kConfig>(shared, args).run();
    }
}

}  // namespace gdn_cuda::gdn
