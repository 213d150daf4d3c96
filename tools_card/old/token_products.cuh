// Products of a chunk's tokens, K K^T and Q K^T, decayed: by whichever role needs one.
#pragma once

#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/hopper/fragment.cuh>

namespace gdn_cuda::gdn {

// left (64 x k) right^T (k x 64), both tokens of a chunk.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void start_token_products(float (&products)[32], const SwizzledTile* left,
                                                     const SwizzledTile* right) {
    const auto left_operand = tile_operand(left, 0), right_operand = tile_operand(right, 0);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kConfig.head_k / 16; ++step)
        Product<kConfig.io, 64, true>::run(products, left_operand + k_major_step(step), right_operand + k_major_step(step),
                                           step > 0);
    cute::warpgroup_commit_batch();
}

// In place, token products times 2^(row - column), for 16 x 16 blocks up to the diagonal; undefined above it.
__device__ __forceinline__ void decay(float (&products)[32], const Lane& lane, const float (&rows)[kChunk],
                                      const float (&columns)[kChunk]) {
    const float row[2] = {rows[16 * lane.warp + lane.g], rows[16 * lane.warp + lane.g + 8]};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        if (n / 2 > lane.warp) break;
        const float2 column = pair_at(&columns[8 * n + 2 * lane.t]);
#pragma unroll
        for (int i = 0; i < 4; ++i) products[4 * n + i] *= exp2_fast(row[i / 2] - (i % 2 == 0 ? column.x : column.y));
    }
}

// Which of two columns are kept, in 8 x 8 blocks on the diagonal.
__device__ __forceinline__ unsigned diagonal_mask(const Lane& lane) {
    const int ahead = lane.g - 2 * lane.t;  // row minus the first column
    return ahead > 0 ? 0xffffffffu : ahead == 0 ? 0xffffu : 0;
}
// A matrix over tokens up to the diagonal, product(i) for element i of its fragment, and its sign bits flipped by `sign`;
// kResidual: its rounding residual, with zeros written above.
template <DType kIo, bool kResidual, class Product>
__device__ __forceinline__ void store_lower(const Lane& lane, SwizzledTile& scores, unsigned sign, Product&& product) {
    const unsigned to = tile_row(scores.bytes, 16 * lane.warp + lane.lane % 16);
    const unsigned on_diagonal = diagonal_mask(lane);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const bool above = n / 2 > lane.warp, diagonal = n / 2 == lane.warp;
        if (!kResidual && above) break;
        const unsigned all = above ? 0 : 0xffffffffu, keep = diagonal ? on_diagonal : all, right = diagonal ? 0 : all;
        const auto pair = [&](int i) {
            const float x = product(4 * n + 2 * i), next = product(4 * n + 2 * i + 1);
            const unsigned rounded = pack<kIo>(x, next);
            return (kResidual ? pack_residual<kIo>(x, next, rounded) : rounded) ^ sign;
        };
        stmatrix_x4(row_vector(to, n + lane.lane / 16), pair(0) & keep, pair(1) & all, pair(2) & right, pair(3) & keep);
    }
}
// The same for the warp's 16 x 16 block on the diagonal alone, whose element i product(i) is.
template <DType kIo, class Product>
__device__ __forceinline__ void store_diagonal(const Lane& lane, SwizzledTile& scores, Product&& product) {
    const unsigned to = tile_row(scores.bytes, 16 * lane.warp + lane.lane % 16);
    const unsigned keep = diagonal_mask(lane);
    const auto pair = [&](int i) { return pack<kIo>(product(2 * i), product(2 * i + 1)); };
    stmatrix_x4(row_vector(to, 2 * lane.warp + lane.lane / 16), pair(0) & keep, pair(1), 0, pair(3) & keep);
}
// P = scale r_i r_j exp(G_i - G_j) q_i.k_j.
template <DType kIo, bool kResidual>
__device__ __forceinline__ void store_scores(const float (&products)[32], const Lane& lane, SwizzledTile& scores, float scale) {
    store_lower<kIo, kResidual>(lane, scores, scale < 0.f ? 0x80008000u : 0, [&](int i) { return products[i]; });
}

}  // namespace gdn_cuda::gdn
