// A lane's place in gdn/kda_prepare's warp MMAs, and addresses of operands and results in swizzled tiles.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>

namespace gdn_cuda::gdn {

// A lane's vector in a row of tiles whose channels are summed: at steps of 16 channels, `vector` being the lane's among a
// step's two, or among two steps' four.
struct OperandRow {
    const unsigned first;

    __device__ __forceinline__ OperandRow(const SwizzledTile* tiles, unsigned row, unsigned vector)
        : first(row_vector(tile_row(tiles->bytes, static_cast<int>(row)), static_cast<int>(vector))) {}
    __device__ __forceinline__ unsigned at(int step) const {
        return (first ^ step % 4 << 5) + step / 4 * static_cast<int>(sizeof(SwizzledTile));
    }
};

// Unsigned, so that divisions are shifts.
struct KdaWarp {
    static constexpr unsigned kEightRows = 8 * 128;  // bytes of a tile

    unsigned warp, lane, g, t;

    // Recomputed for every phase: kept, these and addresses made of them would spill.
    __device__ __forceinline__ void find_lane(unsigned index) {
        const unsigned thread = opaque(index);
        warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // warp-uniform for the compiler
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }
    // VectorOfLane's two patterns.
    __device__ __forceinline__ unsigned left_row() const { return lane % 16; }
    __device__ __forceinline__ unsigned left_vector() const { return lane / 16; }
    __device__ __forceinline__ unsigned right_row() const { return lane / 16 * 8 + lane % 8; }
    __device__ __forceinline__ unsigned right_vector() const { return lane / 8 % 2; }

    // The address of a lane's vector: row and vector of a tile's first 16 rows and of two vectors from `vector` on.
    __device__ __forceinline__ static unsigned vector_at(const SwizzledTile* tiles, unsigned row, unsigned vector) {
        return row_vector(tile_row(tiles[vector / 8].bytes, static_cast<int>(row)), static_cast<int>(vector % 8));
    }
    // The offset of the lane's pair of accumulators in row g, at multiples of 8 rows and columns.
    __device__ __forceinline__ unsigned pair_at(const SwizzledTile* tiles, unsigned row, unsigned column) const {
        return shared_address(tiles[column / kTileElements].bytes) + row * 128 + g * 128 +
               (g << 4 ^ column % kTileElements * 2) + 4 * t;
    }

    template <int kCount>
    __device__ __forceinline__ static void clear(float (&sums)[kCount][4]) {
#pragma unroll
        for (int i = 0; i < 4 * kCount; ++i) sums[i / 4][i % 4] = 0.f;
    }
};

}  // namespace gdn_cuda::gdn
