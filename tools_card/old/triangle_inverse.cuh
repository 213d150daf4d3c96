// (I + A)^-1 of a chunk by four warps: substitution within 16 x 16 blocks on the diagonal, in fp32, and products of blocks
// (tf32). Whoever forms A stores it as blocks of -A (triangle.cuh); each warp inverts its block on the diagonal, and after a
// barrier of the four computes a column of blocks from the diagonal downwards.
#pragma once

#include <gdn_cuda/kernels/chunked/triangle.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

struct TriangleInverse : Lane {
    __device__ __forceinline__ static TriangleBlock* row_of_blocks(TriangleBlock* blocks, int row) {
        return blocks + row * (row + 1) / 2;
    }

    // (I + A)^-1 of this warp's diagonal block, in place: the two 8 x 8 diagonal blocks by substitution, one column per lane;
    // the one below by two products.
    __device__ __forceinline__ void invert_diagonal(TriangleBlock* blocks) const {
        float* diagonal = row_of_blocks(blocks, warp)[warp].values;
        const int column = lane % 8;
        float* half = diagonal + (lane & 8) * 16;
        float* const halves[2] = {half + (lane & 8), half + (8 - (lane & 8))};  // for row pairs with even and odd index i / 2
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float sum = i == column ? 1.f : 0.f;
#pragma unroll
            for (int m = 0; m < i; m += 4) {
                const float4 a = *reinterpret_cast<const float4*>(&halves[i / 2 % 2][i * 16 + m]);
                sum = fmaf(a.x, x[m], sum);
                if (m + 1 < i) sum = fmaf(a.y, x[m + 1], sum);
                if (m + 2 < i) sum = fmaf(a.z, x[m + 2], sum);
                if (m + 3 < i) sum = fmaf(a.w, x[m + 3], sum);
            }
            x[i] = sum;
        }
        const float2 below = pair_at(&diagonal[TriangleBlock::at(8 + g, 2 * t)]);
        __syncwarp();
        if (lane < 16)
#pragma unroll
            for (int i = 0; i < 8; ++i) halves[i / 2 % 2][i * 16 + column] = round_tf32(x[i]);
        __syncwarp();
        const float2 lower = pair_at(&diagonal[TriangleBlock::at(8 + g, 8 + 2 * t)]);
        const unsigned upper[4] = {__float_as_uint(diagonal[TriangleBlock::at(2 * t, g)]), 0,
                                   __float_as_uint(diagonal[TriangleBlock::at(2 * t + 1, g)]), 0};
        float product[4] = {}, corner[4] = {};  // transposed, in rows 0 to 7
        mma_m16n8k8_tf32(product, upper, to_tf32(below.x), to_tf32(below.y));
        const unsigned left[4] = {to_tf32(product[0]), 0, to_tf32(product[1]), 0};
        mma_m16n8k8_tf32(corner, left, __float_as_uint(lower.x), __float_as_uint(lower.y));
        diagonal[TriangleBlock::at(8 + 2 * t, g)] = round_tf32(corner[0]);
        diagonal[TriangleBlock::at(8 + 2 * t + 1, g)] = round_tf32(corner[1]);
        *reinterpret_cast<float2*>(&diagonal[TriangleBlock::at(g, 8 + 2 * t)]) = {};
    }

    // A 16 x 16 block as transposed accumulators: rows are its columns g and g + 8, columns its rows 8 n + 2 t and + 1.
    using Transposed = float[2][4];
    using Operand = unsigned[2][4];

    __device__ __forceinline__ static void make_operand(Operand& a, const Transposed& d) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            a[step][0] = to_tf32(d[step][0]);
            a[step][1] = to_tf32(d[step][2]);
            a[step][2] = to_tf32(d[step][1]);
            a[step][3] = to_tf32(d[step][3]);
        }
    }
    // d += a b^T. kLower: b is lower triangular.
    template <bool kLower = false>
    __device__ __forceinline__ void add_block_product(Transposed& d, const Operand& a, const TriangleBlock& b) const {
        const int halves[2] = {TriangleBlock::at(g, 2 * t), TriangleBlock::at(g, 8 + 2 * t)};
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int n = kLower ? step : 0; n < 2; ++n) {
                const float2 pair = pair_at(&b.values[halves[step] + n * TriangleBlock::kEightRows]);
                mma_m16n8k8_tf32(d[n], a[step], __float_as_uint(pair.x), __float_as_uint(pair.y));
            }
    }
    // Calls visit(block of T diag(beta), 0) for a block on the diagonal, any warp's.
    template <class Visit>
    __device__ __forceinline__ void visit_diagonal(TriangleBlock* blocks, int column, const float (&betas)[kChunk],
                                                   Visit&& visit) const {
        Transposed x;
        load_diagonal(x, blocks, column);
        visit_scaled<0>(x, betas_of(betas, column), visit);
    }
    // Computes this warp's column of blocks downwards: T_wj = T_ww sum over j <= m < w of -A_wm T_mj, transposed, so that each
    // result is the next left operand. Calls visit(block of T diag(beta), blocks below the diagonal). kDiagonal: for the block
    // on the diagonal too.
    template <bool kDiagonal = true, class Visit>
    __device__ __forceinline__ void for_each_block_below(TriangleBlock* blocks, const float (&betas)[kChunk],
                                                         Visit&& visit) const {
        Transposed x;
        load_diagonal(x, blocks, warp);
        Operand column[3];
        const float2 beta = betas_of(betas, warp);
        if constexpr (kDiagonal) visit_scaled<0>(x, beta, visit);
        multiply_down<1>(blocks, column, x, beta, visit);
    }
    __device__ __forceinline__ void load_diagonal(Transposed& x, TriangleBlock* blocks, int block) const {
        const float* diagonal = row_of_blocks(blocks, block)[block].values;
        const float* const halves[2] = {diagonal + TriangleBlock::at(2 * t, g), diagonal + TriangleBlock::at(2 * t, g + 8)};
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[n][i] = halves[i / 2][n * TriangleBlock::kEightRows + i % 2 * 16];
    }
    __device__ __forceinline__ float2 betas_of(const float (&betas)[kChunk], int column) const {
        return {betas[16 * column + g], betas[16 * column + g + 8]};
    }
    template <int kBelow, class Visit>
    __device__ __forceinline__ void multiply_down(TriangleBlock* blocks, Operand (&column)[3], Transposed& x, float2 beta,
                                                  Visit& visit) const {
        if (warp + kBelow > 3) return;
        make_operand(column[kBelow - 1], x);
        const TriangleBlock* row = row_of_blocks(blocks, warp + kBelow) + warp;
        Transposed sum = {}, odd = {}, next = {};  // two accumulators shorten the chain of dependent MMAs
#pragma unroll
        for (int m = 0; m < kBelow; ++m) add_block_product(m % 2 == 0 ? sum : odd, column[m], row[m]);
        if constexpr (kBelow > 1)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] += odd[i / 4][i % 4];
        Operand left;
        make_operand(left, sum);
        add_block_product<true>(next, left, row[kBelow]);
        visit_scaled<kBelow>(next, beta, visit);
        if constexpr (kBelow < 3) multiply_down<kBelow + 1>(blocks, column, next, beta, visit);
    }
    template <int kBelow, class Visit>
    __device__ __forceinline__ static void visit_scaled(const Transposed& x, float2 beta, Visit& visit) {
        Transposed scaled;
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) scaled[n][i] = x[n][i] * (i < 2 ? beta.x : beta.y);
        visit(scaled, kBelow);
    }
};

}  // namespace gdn_cuda::gdn
