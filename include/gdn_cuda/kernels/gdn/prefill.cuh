// gdn/prefill: the chunked form of Gated Delta Net on Hopper's tensor cores, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j) for i > j      T = (I + A)^-1 diag(beta)
//     X = v - exp(G) k S^T    V' = T X                      P_ij = scale (q_i.k_j) exp(G_i - G_j) for i >= j
//     o = scale exp(G) q S^T + P V'                         S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// for tokens i, j of a chunk, G the sum of gates from the chunk's first token on, S (value rows x keys) the state before it.
//
// A block takes one segment of a sequence, one value head and 64 rows of S per value warpgroup. Rows of S are independent, so a
// value warpgroup keeps its rows in registers for the whole segment and computes everything transposed: S k^T, S q^T, X^T T^T,
// V'^T P^T and V'^T k have S, X or V' as the left operand, in registers, and keys, queries, T or P as the right one, in shared
// memory as TMA left them. T and P need no state, so two helper roles run ahead: one warpgroup issues the TMA loads and forms P
// (chunked/scores.cuh), others compute T (chunked/inverse.cuh). chunked/plan.cuh has the shared memory and the mbarriers
// between roles, chunked/run.cuh runs them over the work that the block's schedule yields (chunked/schedules.cuh). Norms, gates
// and scale are factors of rows and columns; q, k and v are never rewritten.
//
// Most blocks take one pass. Where states cross segment borders, earlier passes compute and apply summaries of segments
// (chunked/segments.cuh). A chunk whose gates reset the state and whose products may overflow is taken token by token
// (prefill/by_token.cuh). With three waves of blocks or more, the grid is persistent (chunked/persistent.cuh).
// Keys of more than 128 have stages of their own (LoadedTiles), and prefill/wide.cuh has the second half of their chunks.
//
// kernels/chunked has what any rule with one gate a token and head needs. prefill/values.cuh is this rule's own step: what a
// chunk does to S, in which order. A rule with a gate for each channel of the key would change chunked/factors.cuh first.
//
// Bound: latency around the cycle of roles, and instruction issue; tensor cores are busy half of the time. On an H200 filled
// with sequences, 53 to 62 % of the roofline (docs/benchmarks/prefill.md; why: docs/kernels/gdn_prefill.md).
#pragma once

#include <gdn_cuda/kernels/chunked/run.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/prefill/values.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill(const __grid_constant__ ChunkedArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ChunkedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);

    // Two launches run concurrently: one of them does the work, or each takes its sequences. One block of the second waits for
    // the first to end, so that later work in the stream waits for both. A persistent launch is alone.
    if (!kConfig.persistent && is_first_of_two(args.takes)) launch_dependent_grids();
    run_block<GdnValueRole>(shared, args);
    if (!kConfig.persistent && is_second_of_two(args.takes) && blockIdx.x + blockIdx.y + blockIdx.z == 0)
        wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
