// What gdn/kda_prepare forms of T: Z = (T r)^T (d k) and P' = P (T r), by warp MMAs. T is used in two parts; both triangles'
// zero blocks are skipped.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/scores.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaProducts {
    static constexpr int kBlocks = kChunk / 16, kPairs = 4;  // n: 8 columns

    KdaPreparePlan& shared;
    int warp, lane, g, t;
    // Z: two blocks of 16 rows, 32 channels. The first blocks have most terms, so a warp has the first and the last, or the two
    // between.
    float update[2][kPairs][4];
    // P': a block below the diagonal, or two on it.
    float scores[2][2][4];

    __device__ __forceinline__ explicit KdaProducts(KdaPreparePlan& shared) : shared(shared) {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // warp-uniform for the compiler
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }

    __device__ __forceinline__ void multiply() {
        multiply_update();
        multiply_scores();
    }
    // Once all warps have multiplied: Z replaces its keys, P' replaces P.
    __device__ __forceinline__ void store() const { store<false>(shared.operands.other_key, shared.matrices.scores[0]); }
    __device__ __forceinline__ void store_residuals() const { store<true>(shared.matrices.inverse, shared.matrices.scores[1]); }

  private:
    __device__ __forceinline__ int update_block(int i) const { return i == 0 ? warp / 4 : kBlocks - 1 - warp / 4; }
    __device__ __forceinline__ int first_vector() const { return 4 * (warp % 4); }

    // P' blocks by warp: (3, 0), (3, 1), (2, 0), (1, 0), (2, 1), (3, 2), then two of the diagonal.
    __device__ __forceinline__ bool on_diagonal() const { return warp >= 6; }
    __device__ __forceinline__ int row_block(int i) const {
        return on_diagonal() ? 2 * (warp - 6) + i : 0x321233 >> 4 * warp & 0xf;
    }
    __device__ __forceinline__ int column_block(int i) const {
        return on_diagonal() ? 2 * (warp - 6) + i : 0x210010 >> 4 * warp & 0xf;
    }

    __device__ __forceinline__ void multiply_update() {
#pragma unroll
        for (auto& block : update)
#pragma unroll
            for (auto& pair : block)
#pragma unroll
                for (float& x : pair) x = 0.f;
        const auto on_left = VectorOfLane::crossed(lane), on_right = VectorOfLane::straight(lane);
#pragma unroll
        for (int from = 0; from < kBlocks; ++from) {  // blocks of tokens
            unsigned keys[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                ldmatrix_x4_trans(keys[i], operand_at(shared.operands.other_key, 16 * from + on_right.row,
                                                      first_vector() + 2 * i + on_right.vector));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (from < update_block(i)) continue;
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    unsigned left[4];
                    ldmatrix_x4_trans(left, operand_at(&shared.matrices.inverse[part], 16 * from + on_left.row,
                                                       2 * update_block(i) + on_left.vector));
#pragma unroll
                    for (int n = 0; n < kPairs; ++n)
                        mma_m16n8k16<kIo>(update[i][n], left, keys[n / 2][n % 2 * 2], keys[n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }
    __device__ __forceinline__ void multiply_scores() {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (auto& pair : scores[i])
#pragma unroll
                for (float& x : pair) x = 0.f;
            if (i == 1 && !on_diagonal()) break;
            const int row = row_block(i), column = column_block(i);
#pragma unroll 1
            for (int between = column; between <= row; ++between) add_scores(scores[i], row, between, column);
        }
    }
    __device__ __forceinline__ void add_scores(float (&sums)[2][4], int row, int between, int column) const {
        const auto at = VectorOfLane::straight(lane);
        unsigned left[2][4], right[2][4];
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            ldmatrix_x4(left[part], operand_at(&shared.matrices.scores[part], 16 * row + at.row, 2 * between + at.vector));
            ldmatrix_x4_trans(right[part],
                              operand_at(&shared.matrices.inverse[part], 16 * between + at.row, 2 * column + at.vector));
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            mma_m16n8k16<kIo>(sums[n], left[1], right[0][2 * n], right[0][2 * n + 1]);
            mma_m16n8k16<kIo>(sums[n], left[0], right[1][2 * n], right[1][2 * n + 1]);
            mma_m16n8k16<kIo>(sums[n], left[0], right[0][2 * n], right[0][2 * n + 1]);
        }
    }

    template <bool kResidual>
    __device__ __forceinline__ void store(SwizzledTile* update_tiles, SwizzledTile& scores_tile) const {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int n = 0; n < kPairs; ++n)
                store_pairs<kResidual>(update_tiles, 16 * update_block(i), first_vector() + n, update[i][n]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (i == 1 && !on_diagonal()) break;
            const int row = row_block(i), column = column_block(i);
#pragma unroll
            for (int n = 0; n < 2; ++n) store_pairs<kResidual>(&scores_tile, 16 * row, 2 * column + n, scores[i][n]);
            if (on_diagonal()) continue;
            const auto at = VectorOfLane::straight(lane);  // the block that mirrors it is above the diagonal
            store_shared(operand_at(&scores_tile, 16 * column + at.row, 2 * row + at.vector), uint4{});
        }
    }
    template <bool kResidual>
    __device__ __forceinline__ void store_pairs(SwizzledTile* tiles, int row, int vector, const float (&sums)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float x = sums[2 * half], next = sums[2 * half + 1];
            const unsigned rounded = pack<kIo>(x, next);
            store_shared(operand_at(tiles, row + g + 8 * half, vector) + 4 * t,
                         kResidual ? pack_residual<kIo>(x, next, rounded) : rounded);
        }
    }
};

}  // namespace gdn_cuda::gdn
