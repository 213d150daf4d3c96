// gdn/backward_mma_gradients: gradients of queries, keys, betas and gates of a chunk, on the tensor cores of any GPU from sm_80
// on. What the chains hand over is all that crosses chunks, so chunks are independent (backward/handover.cuh): S before the
// chunk, E, the gradient of the state after it, R = V' / beta, and dV.
//
//     dP_ij = scale (dO_i.R_j) exp(G_i - G_j) beta_j, i >= j        dA_ij = -(dV_i.R_j) exp(G_i - G_j) beta_j, i > j
//     dq = scale exp(G) dO S + dP k
//     dk = exp(G_C - G) beta R E - exp(G) dV S + dP^T q + (dA + dA^T) k
//     dbeta_i = dV_i.R_i / beta_i
//     dg_t = sum of s_i, i >= t + sum of u_j, j < t + exp(G_C) <E, S> + sum of M_ij, i >= t > j
//         s_i = q_i.[scale exp(G) dO S]_i - k_i.[exp(G) dV S]_i    u_j = k_j.[exp(G_C - G) beta R E]_j
//         M_ij = dP_ij (q_i.k_j) + dA_ij (k_i.k_j)
//
// A block takes a chunk and a key head. Its value heads follow one another: products of tokens x tokens, on and below the
// diagonal, then blocks of 64 key columns, whose gradients are summed over the value heads in registers. Every tile is 64 x 64;
// each of sixteen warps computes 16 x 16 elements of a product. Loads for a step are issued before the last products of the
// step before it. R and dP are two 16-bit parts: with keys that repeat, their products cancel.
//
// Every term of dg carries the decay across token t, so a reset has a gradient of exactly 0.
//
// Bound: on an H200 3.5 times the time of gdn/backward_gradients. It issues in 44 % of the cycles; warps wait for shared memory
// and for each other (ncu). Of 4,000 instructions that a warp executes for a value head some 200 multiply.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/chunk.cuh>

namespace gdn_cuda::gdn {

template <BackwardGradientsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1)
    backward_mma_gradients(const __grid_constant__ BackwardGradientsArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<BackwardGradientsPlan*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    const i64 index = blockIdx.x;
    const ChunkPlace place = chunk_at(args.cu_seqlens, args.sequences, args.tokens, index);
    if (place.sequence < 0) return;
    if (threadIdx.x == 0) {
        shared.work = {.index = index,
                       .start = place.start,
                       .sequence = place.sequence,
                       .first = place.first,
                       .count = min(kChunk, place.length - place.first),
                       .key_head = static_cast<int>(blockIdx.y)};
        using Io = Storage<kConfig.io>;
        shared.queries = rows_of_chunk<Io>(args.query, shared.work, shared.work.key_head);
        shared.keys = rows_of_chunk<Io>(args.key, shared.work, shared.work.key_head);
    }
    __syncthreads();
    ChunkGradients<kConfig>(shared, args).run();
}

}  // namespace gdn_cuda::gdn
