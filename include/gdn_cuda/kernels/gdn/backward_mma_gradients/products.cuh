// Products of 64 x 64 tiles by sixteen warps: a warp has 16 rows and 16 columns of the result.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/plan.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>

namespace gdn_cuda::gdn {

using TileSums = float[2][4];  // 8 columns each; element i is in row g + 8 (i / 2) and column 2 t + i % 2

// kUnroll: steps of a product that overlap.
template <DType kIo, int kUnroll>
struct TileProducts : MmaPartsLane {
    using Tile = BackwardGradientsPlan::Tile;
    static constexpr int kSteps = kChunk / 16;

    __device__ __forceinline__ int row_block() const { return warp % 4; }
    __device__ __forceinline__ int column_block() const { return warp / 4; }
    __device__ __forceinline__ int row(int i) const { return 16 * row_block() + g + 8 * (i / 2); }
    __device__ __forceinline__ int column(int n, int i) const { return 16 * column_block() + 8 * n + 2 * t + i % 2; }
    // Whether this warp has elements on or below the diagonal.
    __device__ __forceinline__ bool is_below() const { return column_block() <= row_block(); }

    static __device__ __forceinline__ void clear(TileSums& sums) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }

    // sums += x y^T, on and below the diagonal.
    __device__ __forceinline__ void add_by_rows(TileSums& sums, const Tile& x, const Tile& y) const {
        if (!is_below()) return;
#pragma unroll kUnroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4], right[4];
            ldmatrix_x4(left, straight_vector(x.bytes, step) + row_block() * kRowBlockBytes);
            ldmatrix_x4(right, crossed_vector(y.bytes, step) + column_block() * kRowBlockBytes);
            multiply(sums, left, right);
        }
    }
    // sums += x y. kLower: x is lower triangular.
    template <bool kLower = false>
    __device__ __forceinline__ void add(TileSums& sums, const Tile& x, const Tile& y) const {
#pragma unroll kUnroll
        for (int step = 0; step < kSteps; ++step) {
            if (kLower && step > row_block()) break;
            unsigned left[4];
            ldmatrix_x4(left, straight_vector(x.bytes, step) + row_block() * kRowBlockBytes);
            add_step(sums, left, y, step);
        }
    }
    // sums += x^T y, where x is lower triangular.
    __device__ __forceinline__ void add_transposed(TileSums& sums, const Tile& x, const Tile& y) const {
#pragma unroll kUnroll
        for (int step = 0; step < kSteps; ++step) {
            if (step < row_block()) continue;
            unsigned left[4];
            ldmatrix_x4_trans(left, crossed_vector(x.bytes, row_block()) + step * kRowBlockBytes);
            add_step(sums, left, y, step);
        }
    }

    // The address of this thread's elements 8 n + 2 t and + 1 of a tile, in row g (`which` = 0) or g + 8.
    __device__ __forceinline__ unsigned word_at(const Tile& tile, int n, int which) const {
        return row_vector(tile_row(tile.bytes, row(2 * which)), 2 * column_block() + n) + 4 * t;
    }

  private:
    static __device__ __forceinline__ void multiply(TileSums& sums, const unsigned (&left)[4], const unsigned (&right)[4]) {
        mma_m16n8k16<kIo>(sums[0], left, right[0], right[1]);
        mma_m16n8k16<kIo>(sums[1], left, right[2], right[3]);
    }
    __device__ __forceinline__ void add_step(TileSums& sums, const unsigned (&left)[4], const Tile& y, int step) const {
        unsigned right[4];
        ldmatrix_x4_trans(right, straight_vector(y.bytes, column_block()) + step * kRowBlockBytes);
        multiply(sums, left, right);
    }
};

}  // namespace gdn_cuda::gdn
