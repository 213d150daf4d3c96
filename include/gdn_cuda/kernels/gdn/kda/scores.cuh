// Scores of a chunk by warp MMAs of operands that gdn/kda_prepare has written: k k^T for A, in fp32 blocks of -A, and q k^T
// for P, rounded and its residual. Decays are in the operands (kda/elements.cuh).
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>

namespace gdn_cuda::gdn {

// The address of a lane's vector in a row of tiles.
__device__ __forceinline__ unsigned operand_at(const SwizzledTile* tiles, int row, int vector) {
    return row_vector(tile_row(tiles[vector / 8].bytes, row), vector % 8);
}
// Of a row whose channels are summed: at steps of 16 channels, `vector` being the lane's among a step's two, or among two
// steps' four.
struct OperandRow {
    const unsigned first;

    __device__ __forceinline__ OperandRow(const SwizzledTile* tiles, int row, int vector)
        : first(row_vector(tile_row(tiles->bytes, row), vector)) {}
    __device__ __forceinline__ unsigned at(int step) const {
        return (first ^ step % 4 << 5) + step / 4 * static_cast<int>(sizeof(SwizzledTile));
    }
};

template <DType kIo>
struct KdaScores {
    static constexpr int kSteps = kKdaHeadK / 16;

    KdaPreparePlan& shared;
    int warp, lane, g, t;

    __device__ __forceinline__ explicit KdaScores(KdaPreparePlan& shared) : shared(shared) {
        const int thread = opaque(static_cast<int>(threadIdx.x));
        warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // warp-uniform for the compiler
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }

    // Tokens 32 and up against those below: 16 rows of keys or queries x 16 columns a warp.
    __device__ __forceinline__ void multiply_halves_of_32() const {
        const bool queries = warp >= 4;
        const int block = warp / 2 % 2, columns = 16 * (warp % 2);
        float sums[2][4] = {};
        const auto& operands = shared.operands;
        multiply(sums, queries ? operands.query : operands.key, queries ? 16 * block : 32 + 16 * block, operands.key, columns);
        store(queries, 32 + 16 * block, columns, sums);
    }
    // Within each half, 16 tokens against 16: 16 rows x 8 columns a warp.
    __device__ __forceinline__ void multiply_halves_of_16() const {
        const bool queries = warp / 2 % 2;
        const int half = warp / 4, columns = 32 * half + 8 * (warp % 2);
        const auto& operands = shared.operands;
        float sums[4] = {};
        multiply_eight(sums, queries ? operands.query : operands.other_key,
                       (queries ? 32 + 16 * half : 32 * half + 16) + lane % 16, operands.other_key, columns + lane % 8);
        store_eight(queries, 32 * half + 16, columns, sums);
    }
    // Blocks of 16 tokens on the diagonal, keys or queries a warp. Above the diagonal the decays have no bound.
    __device__ __forceinline__ void multiply_diagonal() const {
        const bool queries = warp >= 4;
        const int block = 16 * (warp % 4);
        float sums[2][4] = {};
        const auto& operands = shared.operands;
        multiply(sums, queries ? operands.query : operands.key, block, operands.other_key, block);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * n + 2 * t + i % 2 > g + 8 * (i / 2)) sums[n][i] = 0.f;
        store(queries, block, block, sums);
    }
    // Halves of `first` tokens, from the operands of levels 32 and 16, and of first / 2: a warp has the scores of a quarter.
    __device__ __forceinline__ void multiply_small_halves(int first) const {
        const bool second = warp >= 4;
        const int half = second ? first / 2 : first, quarter = 16 * (warp % 4), row = lane % 16;
        const auto& operands = shared.operands;
        const SwizzledTile* const keys = second ? operands.other_key : operands.key;
        const bool is_query = row >= 8;
        const int left = is_query ? 32 * second + quarter / 2 + row - 8 : quarter + upper(row, half);
        float sums[4] = {};
        multiply_eight(sums, is_query ? operands.query : keys, left, keys, quarter + lower(lane % 8, half));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = 2 * t + i % 2;
            if (g / half == column / half) store_one(i >= 2, quarter + upper(g, half), quarter + lower(column, half), sums[i]);
        }
    }
    // Scores of a block of the diagonal that are not formed.
    __device__ __forceinline__ void clear_diagonal() const {
        const int row = static_cast<int>(threadIdx.x) / 2 % kChunk, vector = row / 16 * 2 + static_cast<int>(threadIdx.x) % 2;
        store_shared(row_vector(tile_row(shared.matrices.scores[warp / 4].bytes, row), vector), uint4{});
    }
    // q.k of a token.
    __device__ __forceinline__ void store_one(bool queries, int row, int column, float x) const {
        if (queries) {
            const unsigned rounded = pack<kIo>(x, 0.f), residual = pack_residual<kIo>(x, 0.f, rounded);
            *score_at(0, row, column) = static_cast<unsigned short>(rounded);
            *score_at(1, row, column) = static_cast<unsigned short>(residual);
        } else {
            block_of(row, column).values[TriangleBlock::at(row % 16, column % 16)] = -row_factor(row) * norm(column) * x;
        }
    }

  private:
    // The r-th token of a quarter in the upper or lower halves.
    __device__ __forceinline__ static int upper(int r, int half) { return lower(r, half) + half; }
    __device__ __forceinline__ static int lower(int r, int half) { return 2 * r - r % half; }

    __device__ __forceinline__ TriangleBlock& block_of(int row, int column) const {
        return shared.triangle[row / 16 * (row / 16 + 1) / 2 + column / 16];
    }
    __device__ __forceinline__ unsigned short* score_at(int part, int row, int column) const {
        unsigned char* const tile = shared.matrices.scores[part].bytes;
        return reinterpret_cast<unsigned short*>(tile + row * 128 + ((column / 8 ^ row % 8) << 4) + 2 * (column % 8));
    }
    __device__ __forceinline__ float norm(int token) const { return shared.factors.key_norm[token]; }
    __device__ __forceinline__ float row_factor(int row) const { return shared.beta[row] * norm(row); }

    // sums += left rows x right rows: 16 x 16.
    __device__ __forceinline__ void multiply(float (&sums)[2][4], const SwizzledTile* left, int left_row,
                                             const SwizzledTile* right, int right_row) const {
        const auto on_left = VectorOfLane::straight(lane), on_right = VectorOfLane::crossed(lane);
        const OperandRow left_at(left, left_row + on_left.row, on_left.vector),
            right_at(right, right_row + on_right.row, on_right.vector);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned a[4], b[4];
            ldmatrix_x4(a, left_at.at(step));
            ldmatrix_x4(b, right_at.at(step));
            mma_m16n8k16<kIo>(sums[0], a, b[0], b[1]);
            mma_m16n8k16<kIo>(sums[1], a, b[2], b[3]);
        }
    }
    // The same with eight columns, and this lane's own rows.
    __device__ __forceinline__ void multiply_eight(float (&sums)[4], const SwizzledTile* left, int left_row,
                                                   const SwizzledTile* right, int right_row) const {
        const OperandRow left_at(left, left_row, lane / 16), right_at(right, right_row, lane / 8);
#pragma unroll
        for (int step = 0; step < kSteps; step += 2) {
            unsigned a[4], next[4], b[4];
            ldmatrix_x4(a, left_at.at(step));
            ldmatrix_x4(next, left_at.at(step + 1));
            ldmatrix_x4(b, right_at.at(step));
            mma_m16n8k16<kIo>(sums, a, b[0], b[1]);
            mma_m16n8k16<kIo>(sums, next, b[2], b[3]);
        }
    }
    __device__ __forceinline__ void store(bool queries, int row, int column, const float (&sums)[2][4]) const {
#pragma unroll
        for (int n = 0; n < 2; ++n) store_eight(queries, row, column + 8 * n, sums[n]);
    }
    __device__ __forceinline__ void store_eight(bool queries, int first_row, int first_column, const float (&sums)[4]) const {
        const int column = first_column + 2 * t;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + g + 8 * half;
            float x = sums[2 * half], next = sums[2 * half + 1];
            if (queries) {
                const unsigned rounded = pack<kIo>(x, next);
#pragma unroll
                for (int part = 0; part < 2; ++part)
                    store_shared(row_vector(tile_row(shared.matrices.scores[part].bytes, row), column / 8) + 4 * t,
                                 part == 0 ? rounded : pack_residual<kIo>(x, next, rounded));
            } else {
                const float factor = -row_factor(row);
                const float2 norms = pair_at(&shared.factors.key_norm[column]);
                x *= factor * norms.x;
                next *= factor * norms.y;
                const bool rounds = first_row / 16 != first_column / 16;  // a factor of tf32 products
                *reinterpret_cast<float2*>(
                    &block_of(first_row, first_column).values[TriangleBlock::at(row % 16, column % 16)]) = {
                    rounds ? __uint_as_float(to_tf32(x)) : x, rounds ? __uint_as_float(to_tf32(next)) : next};
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
