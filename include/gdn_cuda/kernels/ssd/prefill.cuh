// ssd/prefill: Mamba-2's scan on Hopper's tensor cores, 64 tokens a chunk. A head has one decay δA a token, and S is its state,
// P channels x N:
//
//     M_ij = (C_i . B_j) exp(G_i - G_j) δ_j for i >= j
//     Y = M X + exp(G) C S^T + D X        S <- exp(G_C) S + (δ exp(G_C - G) X)^T B
//
// for tokens i, j of a chunk, G the sum of δA from the chunk's first token on.
//
// A block takes two row tiles of 64 channels, of two heads of a group or of one, and one sequence. C and B belong to the group,
// so they are loaded once a block, and C B^T is multiplied once. A warpgroup for each row tile keeps its rows of S in registers
// (prefill/rows.cuh); one forms M of each head (prefill/scores.cuh); the warps of one more run ahead with loads, factors of
// decays, and stores of outputs, which replace x in shared memory (prefill/inputs.cuh). No chunk waits for another but through
// S, and S enters only two products. What decays is known beforehand (ssd/steps).
//
// Where heads and sequences are few, sequences are split into segments, each with blocks of its own. A block first computes the
// state after a segment from zeros, its own or of two the first, without outputs, and hands it on with the segment's decay, one
// number a head. Its outputs start from the sum over all segments before.
//
// Without outputs it computes states: those after sequences with their decays, or those before each chunk; for gradients also
// from the last chunk to the first.
//
// Bound: loads and latency. A step of two heads takes 3450 cycles (measured), 2.0 us, of which loads and stores alone take 1.8
// where all SMs are busy (benchmarks/ssd_tiles.cu) and tensor cores 0.9 (computed): each role is a chain of dependent
// operations.
// Measured share of the bytes' roof: 38 % for 1 x 8192 tokens of 128 heads, 54 % for 8 x 4096 (docs/kernels/ssd_prefill.md).
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/ssd/prefill/rows.cuh>
#include <gdn_cuda/kernels/ssd/prefill/scores.cuh>

namespace gdn_cuda::ssd {

template <SsdConfig kConfig>
__device__ __forceinline__ void set_barriers(SsdPlan<kConfig>& shared) {
    const int row_tiles = shared.work.tiles;
    for (int i = 0; i < kConfig.stages(); ++i) {
        barrier(shared.stage_full[i]).init(1);
        barrier(shared.stage_used[i]).init(4 * row_tiles);
        barrier(shared.stage_empty[i]).init(1);
    }
    for (int i = 0; i < kFactorSlots; ++i) {
        barrier(shared.factors_full[i]).init(shared.work.heads());
        barrier(shared.factors_empty[i]).init(4 * row_tiles);
    }
    for (int i = 0; i < kConfig.slots(); ++i) {
        barrier(shared.scores_full[i]).init(kWarpgroup);
        barrier(shared.scores_empty[i]).init(4 * row_tiles);
    }
    cutlass::arch::fence_barrier_init();
}

template <SsdConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill(const __grid_constant__ SsdArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<SsdPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytes);
    wait_on_dependent_grids();
    if (threadIdx.x == 0) {
        shared.work = work_of_block(args, kConfig.row_tiles);
        set_barriers(shared);
    }
    __syncthreads();
    if (shared.work.segment >= shared.work.segments) return;
    if (shared.work.place != Place::run) return fill_outputs<kConfig.io, kConfig.threads()>(args, shared.work);
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group < kConfig.scores_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inputs_registers()>();
        InputsRole<kConfig>(shared, args).run();
    } else if (group == kConfig.scores_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        ScoresRole<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.row_registers()>();
        if (group <= kConfig.scores_group() + shared.work.tiles) RowsRole<kConfig>(shared, args).run();
    }
}

}  // namespace gdn_cuda::ssd
