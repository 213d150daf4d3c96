// ssd/backward: the gradients of Mamba-2's scan on Hopper's tensor cores, a chunk of 64 tokens of a group a block. All that
// links chunks is in memory: the state S before each chunk, and its gradient E after, which ssd/prefill has stored, from either
// end.
//
//     dW = M'^T dY + exp(G_end - G) B E^T      dX = δ dW + D dY      K = tril(dY W^T), W = δ X
//     dC = N B + Σ exp(G) dY S      dB = N^T C + Σ exp(G_end - G) W E      N = Σ K ⊙ L, over the group's heads
//
// G: sums of δA from the chunk's first token on; L_ij = exp(G_i - G_j) for i >= j; M' = C B^T ⊙ L. The gradient of a token's δA
// is the sum of all that it decays: what is read from S at or after it, what is written into the state after the chunk before
// it, what passes through, and K ⊙ M' between tokens before and after.
//
// A block takes the row tiles (64 channels of a head) of its group one after the other; one warpgroup's rows are tokens that
// read (backward/readers.cuh), another's tokens that write (backward/writers.cuh), and sums over heads stay in their registers,
// so that no gradient is added up in memory. One more loads, derives factors, and finishes the gradients of dt
// (backward/inputs.cuh).
//
// Bound (computed): memory, 32 KB of S and E and 24 KB of x, dY and dX a row tile and chunk with N = 128. It takes 2.1 times as
// long: 0.456 ms for 8192 tokens of 128 heads on an H200, 0.22 computed (docs/kernels/ssd_prefill.md).
#pragma once

#include <gdn_cuda/kernels/ssd/backward/inputs.cuh>
#include <gdn_cuda/kernels/ssd/backward/readers.cuh>
#include <gdn_cuda/kernels/ssd/backward/writers.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardConfig kConfig>
__device__ __forceinline__ void set_barriers(SsdBackwardPlan<kConfig>& shared) {
    constexpr int kWarps = 4 + 4 + 2;  // readers, writers, and the inputs' that multiply states
    barrier(shared.group_full).init(1);
    barrier(shared.tail_full).init(1);
    for (int i = 0; i < SsdBackwardPlan<kConfig>::kStages; ++i) {
        barrier(shared.stage_full[i]).init(1);
        barrier(shared.factors_full[i]).init(1);
        barrier(shared.stage_empty[i]).init(kWarps + 1);
        barrier(shared.scores_full[i]).init(kWarpgroup);
        barrier(shared.sums_full[i]).init(kWarps);
        barrier(shared.sums_empty[i]).init(1);
    }
    cutlass::arch::fence_barrier_init();
}

template <SsdBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward(const __grid_constant__ SsdBackwardArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<SsdBackwardPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytes);
    if (threadIdx.x == 0) {
        shared.work = chunk_work(args);
        set_barriers(shared);
    }
    __syncthreads();
    if (shared.work.count <= 0) {  // a slot between sequences
        clear_sums<kConfig.threads()>(args, shared.work);
        return;
    }
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inputs_registers()>();
        BackwardInputsRole<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.token_registers()>();
        if (group == 1)
            ReadersRole<kConfig>(shared, args).run();
        else
            WritersRole<kConfig>(shared, args).run();
    }
}

}  // namespace gdn_cuda::ssd
