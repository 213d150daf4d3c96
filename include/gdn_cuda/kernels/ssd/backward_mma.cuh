// ssd/backward_mma: the gradients of Mamba-2's scan on the tensor cores of any GPU from sm_80 on, a chunk of 64 tokens of a
// group a block; the formulas are those of ssd/backward. The state S before each chunk, and its gradient E after, are in
// memory: ssd/prefill_mma, or on Hopper ssd/prefill, has stored them.
//
// A block takes the row tiles (64 channels of a head) of its group one after the other. Each of eight warps has 16 rows and 32
// columns of every product (chunked/warp_products.cuh):
//
//     K = tril(dY W^T), M' = C B^T ⊙ L, N += K ⊙ L          tokens x tokens, on and below the diagonal
//     exp(G) dY S, added to dC; times C, what is read       64 states at a time, as the next two
//     δ exp(G_end - G) X E, added to dB
//     dW = exp(G_end - G) B E^T, and at the end + M'^T dY
//
// dC, dB and N, summed over heads, stay in registers: up to 144 of a thread's. After the last row tile N B is added to dC, and
// N^T C to dB. Factors of decays are in fp32, applied to products; S, E, x, dY, C, B, M' and N are rounded.
//
// Shared memory holds 64 states of S or E, with those of C or B, for three steps, of which cp.async loads two ahead, and x and
// dY of two row tiles: 94 KB for any number of states, which fits every GPU.
//
// Bound (computed): instruction issue; measured share of the bytes' roof on an H200: 4 % with 256 states. A warp takes up to
// 4,000 instructions a row tile with 128 states (counted in sm_90a's code), 128 of them MMAs, and an SM has eight warps: 8,000
// cycles, where the 56 KB of S, E, x, dY and dX take 5,800 from an A100's memory.
#pragma once

#include <gdn_cuda/kernels/ssd/backward_mma/chunk.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardMmaConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_mma(const __grid_constant__ SsdBackwardMmaArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<SsdBackwardMmaPlan*>(memory);
    if (threadIdx.x == 0) shared.work = chunk_work(args);
    __syncthreads();
    if (shared.work.count <= 0) return clear_sums<kConfig.threads()>(args, shared.work);  // a slot between sequences
    ChunkGradients<kConfig>(shared, args).run();
}

}  // namespace gdn_cuda::ssd
