// (I + A)^-1 of a chunk by four warps, as in triangle_inverse.cuh, with products of 16 x 16 blocks in fp16: its mantissa is as long
// as that of tf32, a product takes half the instructions and half the steps, and operands are packed pairs. Entries beyond fp16
// are left to the caller.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

// A 16 x 16 block in fp16: 16-byte vector p of row r is at p ^ (r / 4 % 2), so that eight rows hit 32 different banks.
struct alignas(16) HalfBlock {
    static constexpr int kBytes = 16 * 16 * 2;
    unsigned char bytes[kBytes];

    __device__ __forceinline__ static int vector(int row, int p) { return row * 32 + ((p ^ (row / 4 % 2)) << 4); }
};
// Blocks of -A below the diagonal; on it the transposes of its inverse. Row by row.
struct HalfScratch {
    static constexpr int kHalf = 80;  // floats from one 8 x 8 block of a diagonal block to the next: no bank conflicts
    HalfBlock blocks[10];
    float diagonal[4][2 * kHalf];  // of A
};

struct HalfInverse : Lane {
    // Bounds within which no entry of A, T or a sum between them is beyond fp16: keys of length 1 or shorter, betas of 0 to 2 and
    // gates that do not grow. Then T_ij = -beta_i k_i (I - beta k k^T) ... (I - beta k k^T) k_j, and none of these factors grows
    // by more than a twentieth. A beta of 0 says nothing of its key's length.
    static constexpr float kLargestBeta = 2.01f, kLargestSquare = 1.05f, kLargestGate = 1e-3f;

    using Operand = unsigned[4];  // a 16 x 16 block of T, transposed, as a left operand
    using Sums = float[2][4];

    __device__ __forceinline__ static int block_of(int row, int column) { return row * (row + 1) / 2 + column; }

    // This warp's row of blocks of -A; the lower left quarter of the one on the diagonal, packed. Returns whether all is within
    // fp16 as far as these rows tell; tokens from `count` on are past the end.
    __device__ __forceinline__ bool store_blocks(unsigned& below, HalfScratch& scratch, const float (&products)[32],
                                                 const float (&betas)[kChunk], const float (&gates)[kChunk], int count) const {
        const unsigned to = shared_address(scratch.blocks) + block_of(warp, 0) * HalfBlock::kBytes +
                            HalfBlock::vector(lane % 16, lane / 16);
        float* const diagonal = scratch.diagonal[warp] + 8 * g + 2 * t;
        const int token = 16 * warp + g;
        const float beta[2] = {betas[token], betas[token + 8]};
        bool is_within = beta[0] <= kLargestBeta & beta[1] <= kLargestBeta & (beta[0] > 0.f | token >= count) &
                         (beta[1] > 0.f | token + 8 >= count);
#pragma unroll
        for (int column = 0; column < 4; ++column) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = products[8 * column + i];
            if (column == warp) {
#pragma unroll
                for (int i = 0; i < 8; ++i) x[i] = opaque(x[i]);  // else the four branches become one with an index at run time
                *reinterpret_cast<float2*>(diagonal) = {x[0], x[1]};
                *reinterpret_cast<float2*>(diagonal + HalfScratch::kHalf) = {x[6], x[7]};
                below = pack<DType::f16>(x[2], x[3]);
                const float squares[2] = {g % 2 == 0 ? x[0] : x[1], g % 2 == 0 ? x[6] : x[7]};  // beta k k
                is_within &= t != g / 2 | (squares[0] <= kLargestSquare * beta[0] & squares[1] <= kLargestSquare * beta[1]);
                break;
            }
            stmatrix_x4(to + column * HalfBlock::kBytes, pack<DType::f16>(x[0], x[1]), pack<DType::f16>(x[2], x[3]),
                        pack<DType::f16>(x[4], x[5]), pack<DType::f16>(x[6], x[7]));
        }
        const int own = 16 * warp + lane % 16;
        return is_within & gates[own] - (own == 0 ? 0.f : gates[max(own - 1, 0)]) <= kLargestGate;
    }

    // The inverse of this warp's diagonal block, transposed: 8 x 8 blocks by substitution in fp32, one column per lane, the one
    // below them by two products.
    __device__ __forceinline__ void invert_diagonal(Operand& inverse, HalfScratch& scratch, unsigned below) const {
        const float* const rows = scratch.diagonal[warp] + (lane / 8 % 2) * HalfScratch::kHalf;
        const int column = lane % 8;
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float sum = i == column ? -1.f : 0.f;
#pragma unroll
            for (int m = 0; m < i; m += 4) {
                const float4 a = *reinterpret_cast<const float4*>(&rows[8 * i + m]);
                sum = fmaf(-a.x, x[m], sum);
                if (m + 1 < i) sum = fmaf(-a.y, x[m + 1], sum);
                if (m + 2 < i) sum = fmaf(-a.z, x[m + 2], sum);
                if (m + 3 < i) sum = fmaf(-a.w, x[m + 3], sum);
            }
            x[i] = sum;
        }
        unsigned char* const block = scratch.blocks[block_of(warp, warp)].bytes;
        if (lane < 16)
            *reinterpret_cast<uint4*>(block + HalfBlock::vector(lane, lane / 8)) = {
                pack<DType::f16>(x[0], x[1]), pack<DType::f16>(x[2], x[3]), pack<DType::f16>(x[4], x[5]),
                pack<DType::f16>(x[6], x[7])};
        __syncwarp();
        inverse[0] = *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(g, 0) + 4 * t);
        inverse[1] = 0;
        inverse[3] = *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(8 + g, 1) + 4 * t);
        const unsigned upper[4] = {inverse[0], 0, 0, 0};
        float product[4] = {}, corner[4] = {};
        mma_m16n8k16<DType::f16>(product, upper, below, 0);
        const unsigned left[4] = {pack<DType::f16>(product[0], product[1]), 0, 0, 0};
        mma_m16n8k16<DType::f16>(corner, left, transposed(inverse[3]), 0);
        inverse[2] = pack<DType::f16>(corner[0], corner[1]);
        *reinterpret_cast<unsigned*>(block + HalfBlock::vector(g, 1) + 4 * t) = inverse[2];
    }

    // Computes this warp's column of blocks downwards from its diagonal block: T_wj = T_ww sum over j <= m < w of -A_wm T_mj,
    // transposed, so that each result is the next left operand. Calls visit(block of T, transposed, blocks below the diagonal).
    template <class Visit>
    __device__ __forceinline__ void for_each_block_below(const HalfScratch& scratch, const Operand& diagonal, Visit&& visit) const {
        Operand column[3] = {{diagonal[0], diagonal[1], diagonal[2], diagonal[3]}};
        const unsigned blocks = shared_address(scratch.blocks);
        const unsigned rows = blocks + HalfBlock::vector(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        // The upper right block of an inverse is not stored.
        const int row = lane / 16 == 0 ? lane % 8 : lane % 16;
        const unsigned inverses = blocks + HalfBlock::vector(row, lane / 16);
        multiply_down<1>(rows, inverses, column, visit);
    }

    // The inverse of this warp's diagonal block, transposed, once it has been stored.
    __device__ __forceinline__ void load_diagonal(Operand& inverse, const HalfScratch& scratch) const {
        const unsigned char* const block = scratch.blocks[block_of(warp, warp)].bytes;
        inverse[0] = *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(g, 0) + 4 * t);
        inverse[1] = 0;
        inverse[2] = *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(g, 1) + 4 * t);
        inverse[3] = *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(8 + g, 1) + 4 * t);
    }

  private:
    template <int kBelow, class Visit>
    __device__ __forceinline__ void multiply_down(unsigned rows, unsigned inverses, Operand (&column)[3], Visit& visit) const {
        if (warp + kBelow > 3) return;
        const int row = warp + kBelow, first = block_of(row, warp);
        Sums sum = {}, odd = {}, next = {};  // two sums shorten the chain of dependent MMAs
#pragma unroll
        for (int m = 0; m < kBelow; ++m) {
            unsigned right[4];
            ldmatrix_x4(right, rows + (first + m) * HalfBlock::kBytes);
            Sums& to = m % 2 == 0 ? sum : odd;
            mma_m16n8k16<DType::f16>(to[0], column[m], right[0], right[1]);
            mma_m16n8k16<DType::f16>(to[1], column[m], right[2], right[3]);
        }
        unsigned right[4];
        ldmatrix_x4_trans(right, inverses + (first + kBelow) * HalfBlock::kBytes);
        if constexpr (kBelow > 1)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] += odd[i / 4][i % 4];
        Operand left;
        as_left<DType::f16>(left, sum[0], sum[1]);
        mma_m16n8k16<DType::f16>(next[0], left, right[0], 0);
        mma_m16n8k16<DType::f16>(next[1], left, right[2], right[3]);
        visit(next, kBelow);
        if constexpr (kBelow < 3) {
            as_left<DType::f16>(column[kBelow], next[0], next[1]);
            multiply_down<kBelow + 1>(rows, inverses, column, visit);
        }
    }
};

}  // namespace gdn_cuda::gdn
