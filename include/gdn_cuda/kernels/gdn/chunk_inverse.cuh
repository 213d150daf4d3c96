// (I + A)^-1 for the strictly lower triangular A of a 64-token chunk, in fp32, by four warps; needs only sm_80.
//
// Each warp inverts one 16 x 16 block of the diagonal by substitution. Then the warps compute their rows of blocks, in order:
//     T_wj = -(T_ww A_wm) T_mj, summed over j <= m < w,
// where warp w has the first factor and earlier warps computed the second. Products are about as accurate as fp32 (three tf32
// products): with beta near 2 and repeated keys, entries alternate in sign and cancel, which magnifies rounding errors.
//
// Use: warps 0..3 call it together. Before, each has written row `warp` of blocks (A below the diagonal; what a diagonal block
// holds above it is not read) and called __syncwarp or a stronger barrier. On return a warp may read row `warp` of the inverse,
// and after the next barrier all rows. `gather` is a barrier of the four warps, or of more warps that call it as often
// (kGathers).
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

constexpr int kInverseBlock = 16, kInverseWarps = kChunk / kInverseBlock;

struct ChunkTriangle {
    // Rows are padded against bank conflicts.
    struct alignas(16) Block {
        float at[kInverseBlock][kInverseBlock + 4];
    };
    static constexpr int kBlocks = kInverseWarps * (kInverseWarps + 1) / 2;
    Block blocks[kBlocks];

    // Index in `blocks` of the block in a row and column of blocks.
    GDN_HOST_DEVICE static constexpr int index_of(int row, int column) { return row * (row + 1) / 2 + column; }
    GDN_HOST_DEVICE Block& block(int row, int column) { return blocks[index_of(row, column)]; }
    GDN_HOST_DEVICE float& at(int row, int column) {
        return block(row / kInverseBlock, column / kInverseBlock).at[row % kInverseBlock][column % kInverseBlock];
    }
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/tf32.cuh>

namespace gdn_cuda::gdn {

// (I + A)^-1 of one block by one warp, where A may be in its place: lane c, and lane c + 16 too, computes column c.
__device__ __forceinline__ void invert_block(const ChunkTriangle::Block& a_block, ChunkTriangle::Block& inverse, int lane) {
    const int column = lane % kInverseBlock;
    float x[kInverseBlock];
#pragma unroll
    for (int i = 0; i < kInverseBlock; ++i) {
        float sum = i == column ? 1.f : 0.f;
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            const float4 a = *reinterpret_cast<const float4*>(&a_block.at[i][m]);
            sum = fmaf(-a.x, x[m], sum);
            if (m + 1 < i) sum = fmaf(-a.y, x[m + 1], sum);
            if (m + 2 < i) sum = fmaf(-a.z, x[m + 2], sum);
            if (m + 3 < i) sum = fmaf(-a.w, x[m + 3], sum);
        }
        x[i] = sum;
    }
    __syncwarp();
    if (lane < kInverseBlock)
#pragma unroll
        for (int i = 0; i < kInverseBlock; ++i) inverse.at[i][column] = x[i];
    __syncwarp();
}

struct ChunkInverse {
    static constexpr int kGathers = kInverseWarps - 1;
    using Block = ChunkTriangle::Block;

    ChunkTriangle& triangle;
    const int warp, lane, g = lane / 4, t = lane % 4;

    __device__ __forceinline__ ChunkInverse(ChunkTriangle& triangle, int warp, int lane)
        : triangle(triangle), warp(warp), lane(lane) {}

    __device__ __forceinline__ void invert_diagonal() const {
        Block& diagonal = triangle.block(warp, warp);
        invert_block(diagonal, diagonal, lane);
    }

    using Left = TwoParts[2][4];  // a 16 x 16 left operand: two k steps of columns 8 step + 2 t and + 1
    using Sums = float[2][4];     // a 16 x 16 accumulator: two halves of columns

    static __device__ __forceinline__ void as_factor(Left& left, const Sums& x, float sign) {
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) left[step][i] = TwoParts::of(sign * x[step][i % 2 * 2 + i / 2]);
    }
    __device__ __forceinline__ void read(Sums& x, const Block& block) const {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 pair = *reinterpret_cast<const float2*>(&block.at[g + 8 * half][8 * n + 2 * t]);
                x[n][2 * half] = pair.x;
                x[n][2 * half + 1] = pair.y;
            }
    }
    __device__ __forceinline__ void write(Block& block, const Sums& x) const {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(&block.at[g + 8 * half][8 * n + 2 * t]) = {x[n][2 * half], x[n][2 * half + 1]};
    }
    __device__ __forceinline__ void add_block_product(Sums& sums, const Left& a, const Block& b) const {
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int k = 8 * step + 2 * t;
                add_product_fp32(sums[n], a[step], TwoParts::of(b.at[k][8 * n + g]), TwoParts::of(b.at[k + 1][8 * n + g]));
            }
    }

    template <class Gather>
    __device__ __forceinline__ void merge(Gather&& gather) const {
        Sums merged[kGathers] = {}, left[kGathers] = {};  // left: T_ww A_wm
        Sums x;
        read(x, triangle.block(warp, warp));
        Left own;
        as_factor(own, x, 1.f);
#pragma unroll
        for (int m = 0; m < kGathers; ++m)
            if (m < warp) add_block_product(left[m], own, triangle.block(warp, m));
#pragma unroll
        for (int m = 0; m < kGathers; ++m) {
            gather();  // row m of the inverse is complete
            if (warp <= m) continue;
            Left factor;
            as_factor(factor, left[m], -1.f);
#pragma unroll
            for (int j = 0; j <= m; ++j) add_block_product(merged[j], factor, triangle.block(m, j));
            if (warp == m + 1)
#pragma unroll
                for (int j = 0; j <= m; ++j) write(triangle.block(warp, j), merged[j]);
        }
        __syncwarp();
    }
};

template <class Gather>
__device__ __forceinline__ void invert_chunk(ChunkTriangle& triangle, int warp, Gather&& gather,
                                             int lane = static_cast<int>(threadIdx.x % 32)) {
    const ChunkInverse inverse(triangle, warp, lane);
    inverse.invert_diagonal();
    inverse.merge(gather);
}

}  // namespace gdn_cuda::gdn

#endif
