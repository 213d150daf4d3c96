// Products of 64 x 64 tiles by eight warps: a warp has 16 rows and 32 columns of the result.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/plan.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>

namespace gdn_cuda::gdn {

using TileSums = float[4][4];  // 8 columns each; element i is in row g + 8 (i / 2) and column 2 t + i % 2

template <DType kIo>
struct TileProducts : MmaLane {
    using Tile = BackwardGradientsPlan::Tile;
    static constexpr int kSteps = kChunk / 16;

    __device__ __forceinline__ int row_block() const { return warp % 4; }
    __device__ __forceinline__ int half() const { return warp / 4; }
    __device__ __forceinline__ int row(int i) const { return 16 * row_block() + g + 8 * (i / 2); }
    __device__ __forceinline__ int column(int n, int i) const { return 32 * half() + 8 * n + 2 * t + i % 2; }

    static __device__ __forceinline__ void clear(TileSums& sums) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    template <class Visit>
    static __device__ __forceinline__ void for_each(Visit&& visit) {
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(n, i);
    }

    // sums += x y^T
    __device__ __forceinline__ void add_by_rows(TileSums& sums, const Tile& x, const Tile& y) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4(left, straight_vector(x.bytes, step) + row_block() * kRowBlockBytes);
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                unsigned right[4];
                ldmatrix_x4(right, crossed_vector(y.bytes, step) + (2 * half() + pair) * kRowBlockBytes);
                multiply(sums, pair, left, right);
            }
        }
    }
    // sums += x y
    __device__ __forceinline__ void add(TileSums& sums, const Tile& x, const Tile& y) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4(left, straight_vector(x.bytes, step) + row_block() * kRowBlockBytes);
            add_step(sums, left, y, step);
        }
    }
    // sums += x^T y
    __device__ __forceinline__ void add_transposed(TileSums& sums, const Tile& x, const Tile& y) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4_trans(left, crossed_vector(x.bytes, row_block()) + step * kRowBlockBytes);
            add_step(sums, left, y, step);
        }
    }

    // Elements in columns 8 n + 2 t and + 1 of this thread's row i / 2, packed.
    __device__ __forceinline__ unsigned pair_at(const Tile& tile, int n, int i) const {
        return row_vector(tile_row(tile.bytes, row(i)), 4 * half() + n) + 4 * t;
    }

  private:
    static __device__ __forceinline__ void multiply(TileSums& sums, int pair, const unsigned (&left)[4],
                                                    const unsigned (&right)[4]) {
        mma_m16n8k16<kIo>(sums[2 * pair], left, right[0], right[1]);
        mma_m16n8k16<kIo>(sums[2 * pair + 1], left, right[2], right[3]);
    }
    __device__ __forceinline__ void add_step(TileSums& sums, const unsigned (&left)[4], const Tile& y, int step) const {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            unsigned right[4];
            ldmatrix_x4_trans(right, straight_vector(y.bytes, 2 * half() + pair) + step * kRowBlockBytes);
            multiply(sums, pair, left, right);
        }
    }
};

}  // namespace gdn_cuda::gdn
