// Gradients of taps on tensor cores: sums over tokens s of dz_s u_{s-j}, for every lag j.
//
// Of 128 lags j = 8 r + q, r < 16 and q < 8, one accumulator of 16 x 8 has all sums, each once, and there is no other number in
// it:
//     sums[r][q] += sum over tokens x of u_{x - 8 r} dz_{x + q}
// A warp takes 32 tokens x a step; of the summed index lane t, pair p, i = 0, 1 is the token x = first + 8 t + 2 p + i, as in
// toeplitz_product.cuh. Rows of the left operand are then pieces of u in shared memory, a vector of 16 bytes each, and rows
// r + 8 are the rows r of two steps before. A column of the right operand begins q tokens later: a lane takes five neighbouring
// words and, where q is odd, pairs across words.
//
// A tile of 512 tokens takes 32 mma for 128 lags and each product of parts, and reads 144 words a lane and part. Tensor cores
// truncate their sums: every 128 tokens they are added up with rounding to nearest.
//
// Lags beyond the filter may have any sums, also of memory that nobody has written: nobody reads them.
#pragma once

#include <gdn_cuda/kernels/conv/tap_correlation_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_product.cuh>

namespace gdn_cuda::conv {

// Pieces `row` rows of 8 tokens before those of the lanes t, in kUsed parts.
template <int kUsed, int kPieces, int kParts>
__device__ __forceinline__ void load_left(unsigned (&to)[kUsed][4], TileRing<kPieces, kParts>& u, int first_piece) {
    const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
#pragma unroll
    for (int part = 0; part < kUsed; ++part) {
        const uint4 x = piece_of(u, part, first_piece + t - g);
        to[part][0] = x.x, to[part][1] = x.y, to[part][2] = x.z, to[part][3] = x.w;
    }
}
template <int kUsed, int kPieces, int kParts>
__device__ __forceinline__ void load_right(unsigned (&to)[kUsed][4], TileRing<kPieces, kParts>& dz, int first_piece) {
    const int q = lane_of_warp() / 4, t = lane_of_warp() % 4;
    const int first = 4 * (first_piece + t) + q / 2;
    const unsigned both_halves = q % 2 == 0 ? 0x3210 : 0x5432;
#pragma unroll
    for (int part = 0; part < kUsed; ++part) {
        unsigned words[5];
#pragma unroll
        for (int i = 0; i < 5; ++i) {
            const int word = (first + i) & (4 * kPieces - 1);
            words[i] = dz.pieces[part][word / 4][word % 4];
        }
#pragma unroll
        for (int p = 0; p < 4; ++p) to[part][p] = __byte_perm(words[p], words[p + 1], both_halves);
    }
}

// sums += those of the 512 tokens x from piece `first_piece` on and the 128 lags from `first_lag` on, by products of kUsed
// parts.
template <int kUsed, int kPieces, int kParts>
__device__ __forceinline__ void add_correlation(float4& sums, TileRing<kPieces, kParts>& u, TileRing<kPieces, kParts>& dz,
                                                int first_piece, int first_lag) {
    constexpr int kStepPieces = kRowTokens / 8, kStepsOfSum = 4;
    const int first_left = first_piece - first_lag / 8;
    unsigned left[2][kUsed][4];  // of the two steps before
    load_left(left[0], u, first_left - 2 * kStepPieces);
    load_left(left[1], u, first_left - kStepPieces);
#pragma unroll 1
    for (int first = 0; first < kTilePieces; first += kStepsOfSum * kStepPieces) {
        float of_steps[2][4] = {};
#pragma unroll
        for (int step = 0; step < kStepsOfSum; ++step) {
            const int piece = first + step * kStepPieces;
            unsigned now[kUsed][4], right[kUsed][4];
            load_left(now, u, first_left + piece);
            load_right(right, dz, first_piece + piece);
            for_products<kUsed, kUsed>([&](int i, int j) {
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    const unsigned(&before)[4] = left[step % 2][i];
                    const unsigned a[4] = {now[i][2 * k], before[2 * k], now[i][2 * k + 1], before[2 * k + 1]};
                    mma_m16n8k16<DType::bf16>(of_steps[k], a, right[j][2 * k], right[j][2 * k + 1]);
                }
            });
#pragma unroll
            for (int part = 0; part < kUsed; ++part)
#pragma unroll
                for (int i = 0; i < 4; ++i) left[step % 2][part][i] = now[part][i];
        }
        sums.x += of_steps[0][0] + of_steps[1][0];
        sums.y += of_steps[0][1] + of_steps[1][1];
        sums.z += of_steps[0][2] + of_steps[1][2];
        sums.w += of_steps[0][3] + of_steps[1][3];
    }
}
// The lag of a lane's sum i.
__device__ __forceinline__ int lag_of(int i) {
    return 8 * (lane_of_warp() / 4 + 8 * (i / 2)) + 2 * (lane_of_warp() % 4) + i % 2;
}

}  // namespace gdn_cuda::conv
