// Products of 64 x 64 tiles by warps: a warp has 16 rows of the result, and 16 columns of it or 32.
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>

namespace gdn_cuda::gdn {

// kColumnBlocks: of 16 columns, for each warp. kUnroll: steps of a product that overlap.
template <DType kIo, int kColumnBlocks, int kUnroll>
struct WarpProducts : MmaLane {
    using Tile = MmaTile;
    using TileSums = float[2 * kColumnBlocks][4];  // 8 columns each; element i is in row g + 8 (i / 2), column 2 t + i % 2
    static constexpr int kSteps = kChunk / 16;

    // With eight warps those that share a quarter of the SM have as many blocks below the diagonal as the others.
    __device__ __forceinline__ int row_block() const { return kColumnBlocks == 1 || warp < 4 ? warp % 4 : 7 - warp; }
    // The first one.
    __device__ __forceinline__ int column_block() const { return warp / 4 * kColumnBlocks; }
    __device__ __forceinline__ int row(int i) const { return 16 * row_block() + g + 8 * (i / 2); }
    __device__ __forceinline__ int column(int n, int i) const { return 16 * column_block() + 8 * n + 2 * t + i % 2; }
    // Whether this warp has elements on or below the diagonal.
    __device__ __forceinline__ bool is_below(int block = 0) const { return column_block() + block <= row_block(); }

    static __device__ __forceinline__ void clear(TileSums& sums) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }

    // sums += x y^T. kLower: on and below the diagonal.
    template <bool kLower = true>
    __device__ __forceinline__ void add_by_rows(TileSums& sums, const Tile& x, const Tile& y) const {
        if (kLower && !is_below()) return;
#pragma unroll kUnroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4(left, straight_vector(x.bytes, step) + row_block() * kRowBlockBytes);
#pragma unroll
            for (int block = 0; block < kColumnBlocks; ++block) {
                if (kLower && block > 0 && !is_below(block)) break;
                unsigned right[4];
                ldmatrix_x4(right, crossed_vector(y.bytes, step) + (column_block() + block) * kRowBlockBytes);
                multiply(sums, block, left, right);
            }
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
    __device__ __forceinline__ float2 pair_at(const Tile& tile, int n, int which) const {
        return unpack<kIo>(load_shared_word(word_at(tile, n, which)));
    }

  private:
    static __device__ __forceinline__ void multiply(TileSums& sums, int block, const unsigned (&left)[4],
                                                    const unsigned (&right)[4]) {
        mma_m16n8k16<kIo>(sums[2 * block], left, right[0], right[1]);
        mma_m16n8k16<kIo>(sums[2 * block + 1], left, right[2], right[3]);
    }
    __device__ __forceinline__ void add_step(TileSums& sums, const unsigned (&left)[4], const Tile& y, int step) const {
#pragma unroll
        for (int block = 0; block < kColumnBlocks; ++block) {
            unsigned right[4];
            ldmatrix_x4_trans(right, straight_vector(y.bytes, column_block() + block) + step * kRowBlockBytes);
            multiply(sums, block, left, right);
        }
    }
};

}  // namespace gdn_cuda::gdn
