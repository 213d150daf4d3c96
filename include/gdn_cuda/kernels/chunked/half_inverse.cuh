// (I + A)^-1 of a chunk by four warps as in triangle_inverse.cuh, with products of 16 x 16 blocks in fp16: its mantissa is as
// long as that of tf32, a product takes half of the instructions and dependent steps, and a block is one ldmatrix.
//
// fp16 has no exponents for decays. With D = diag(exp(G)), A = D A' D^-1 and (I + A)^-1 = D (I + A')^-1 D^-1, where A' =
// beta_i k_i.k_j has none; they are factors of the result, in fp32. Roundings are those of A and its inverse, relative to each
// entry; and an entry that fp16 loses is below 6e-8 of the one on the diagonal above it, which has the same decay to come.
//
// Results are carried negated, N = -(I + A')^-1, so that no operand changes its sign: N_wj = N_ww sum of A'_wm N_mj over j <= m
// < w.
#pragma once

#include <gdn_cuda/kernels/chunked/triangle_inverse.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>

namespace gdn_cuda::gdn {

struct HalfInverse : TriangleInverse {
    // Within these bounds no entry of A', of its inverse or of a sum between them is beyond fp16: an entry of the inverse is
    // -beta_i k_i (I - beta k k^T) ... (I - beta k k^T) k_j, and no factor grows by more than a ninth. A shorter key's product
    // with one of length 1 would lose digits that matter beside it.
    static constexpr float kLargestBeta = 2.01f, kLargestSquare = 1.05f, kLeastSquare = 0x1p-20f;

    __device__ __forceinline__ static bool is_within(float square) {
        return (square >= kLeastSquare | square == 0.f) & square <= kLargestSquare;
    }

    __device__ __forceinline__ bool betas_are_within(const float (&betas)[kChunk]) const {
        const float2 own = betas_of(betas, warp);
        return own.x >= 0.f & own.y >= 0.f & own.x <= kLargestBeta & own.y <= kLargestBeta;
    }

    using HalfOperand = unsigned[4];  // a block of N, transposed, as a left operand

    __device__ __forceinline__ static int half_block(int row, int column) { return row * (row + 1) / 2 + column; }

    // Stores this warp's row of blocks of A', products of keys times the rows' betas. below: the lower left quarter of the
    // block on the diagonal, packed. Returns whether the products on the diagonal are within the bounds.
    __device__ __forceinline__ bool store_half_blocks(unsigned& below, HalfBlocks& scratch, const float (&products)[32],
                                                      float2 betas) const {
        const unsigned to = shared_address(&scratch.blocks[half_block(warp, 0)]) + HalfBlock::vector(lane % 16, lane / 16);
        float* const diagonal = scratch.diagonal[warp] + 8 * g + 2 * t;
        bool within = true;
#pragma unroll
        for (int column = 0; column < 4; ++column) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = products[8 * column + i];
            if (column == warp) {
#pragma unroll
                for (float& each : x) each = opaque(each);  // else the four branches become one with an index at run time
                within = t != g / 2 | (is_within(g % 2 == 0 ? x[0] : x[1]) & is_within(g % 2 == 0 ? x[6] : x[7]));
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] *= i / 2 % 2 == 0 ? betas.x : betas.y;
            if (column == warp) {
                *reinterpret_cast<float2*>(diagonal) = {x[0], x[1]};
                *reinterpret_cast<float2*>(diagonal + HalfBlocks::kEighth) = {x[6], x[7]};
                below = pack<DType::f16>(x[2], x[3]);
                break;
            }
            stmatrix_x4(to + column * sizeof(HalfBlock), pack<DType::f16>(x[0], x[1]), pack<DType::f16>(x[2], x[3]),
                        pack<DType::f16>(x[4], x[5]), pack<DType::f16>(x[6], x[7]));
        }
        return within;
    }

    // N of this warp's diagonal block, transposed, also stored: 8 x 8 blocks by substitution in fp32, one column per lane, the
    // one below them by two products.
    __device__ __forceinline__ void invert_half_diagonal(HalfOperand& inverse, HalfBlocks& scratch, unsigned below) const {
        const float* const rows = scratch.diagonal[warp] + lane / 8 % 2 * HalfBlocks::kEighth;
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float sum = i == lane % 8 ? -1.f : 0.f;
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
        unsigned char* const block = scratch.blocks[half_block(warp, warp)].bytes;
        if (lane < 16)
            *reinterpret_cast<uint4*>(block + HalfBlock::vector(lane, lane / 8)) = {
                pack<DType::f16>(x[0], x[1]), pack<DType::f16>(x[2], x[3]), pack<DType::f16>(x[4], x[5]),
                pack<DType::f16>(x[6], x[7])};
        __syncwarp();
        inverse[0] = word_of(block, g, 0);
        inverse[1] = 0;
        inverse[3] = word_of(block, 8 + g, 1);
        const unsigned upper[4] = {inverse[0], 0, 0, 0};
        float product[4] = {}, corner[4] = {};
        mma_m16n8k16<DType::f16>(product, upper, below, 0);
        const unsigned left[4] = {pack<DType::f16>(product[0], product[1]), 0, 0, 0};
        mma_m16n8k16<DType::f16>(corner, left, transposed(inverse[3]), 0);
        inverse[2] = pack<DType::f16>(corner[0], corner[1]);
        *reinterpret_cast<unsigned*>(block + HalfBlock::vector(g, 1) + 4 * t) = inverse[2];
    }
    // The same once it has been stored.
    __device__ __forceinline__ void load_half_diagonal(HalfOperand& inverse, const HalfBlocks& scratch) const {
        const unsigned char* const block = scratch.blocks[half_block(warp, warp)].bytes;
        inverse[0] = word_of(block, g, 0);
        inverse[1] = 0;
        inverse[2] = word_of(block, g, 1);
        inverse[3] = word_of(block, 8 + g, 1);
    }

    // Calls visit(block of T diag(beta), 0) for this warp's block on the diagonal.
    template <class Visit>
    __device__ __forceinline__ void visit_half_diagonal(const HalfOperand& diagonal, const float (&betas)[kChunk],
                                                        const float (&gates)[kChunk], Visit&& visit) const {
        const float2 beta = betas_of(betas, warp);
        const float own[2] = {gates[16 * warp + g], gates[16 * warp + g + 8]};
        Transposed x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int n = i / 2, column = i % 2;
            const float2 pair = unpack<DType::f16>(diagonal[i]), gate = pair_at(&gates[16 * warp + 8 * n + 2 * t]);
            const float b = column == 0 ? -beta.x : -beta.y;
            const bool below[2] = {n > column || (n == column && 2 * t >= g), n > column || (n == column && 2 * t + 1 >= g)};
            x[n][2 * column] = below[0] ? pair.x * (b * exp2_fast(gate.x - own[column])) : 0.f;
            x[n][2 * column + 1] = below[1] ? pair.y * (b * exp2_fast(gate.y - own[column])) : 0.f;
        }
        visit(x, 0);
    }
    // Computes this warp's column of blocks below the diagonal, downwards, transposed, so that each result is the next left
    // operand. Calls visit(block of T diag(beta), blocks below the diagonal).
    template <class Visit>
    __device__ __forceinline__ void for_each_half_block_below(const HalfBlocks& scratch, const HalfOperand& diagonal,
                                                              const float (&betas)[kChunk], const float (&gates)[kChunk],
                                                              Visit&& visit) const {
        if (warp == 3) return;
        HalfOperand column[3] = {{diagonal[0], diagonal[1], diagonal[2], diagonal[3]}};
        const auto crossed = VectorOfLane::crossed(lane), straight = VectorOfLane::straight(lane);
        const unsigned blocks = shared_address(scratch.blocks);
        // Decay from this column's tokens to the last of the block; and from that on.
        const float2 beta = betas_of(betas, warp);
        const float end = gates[16 * warp + 15];
        const float2 scale = {-beta.x * exp2_fast(end - gates[16 * warp + g]),
                              -beta.y * exp2_fast(end - gates[16 * warp + g + 8])};
        // The upper right quarter of an inverse is not stored.
        multiply_half_down<1>(
            blocks + HalfBlock::vector(crossed.row, crossed.vector),
            blocks + HalfBlock::vector(straight.vector == 0 ? straight.row % 8 : straight.row, straight.vector), column, scale,
            end, gates, visit);
    }

  private:
    __device__ __forceinline__ unsigned word_of(const unsigned char* block, int row, int vector) const {
        return *reinterpret_cast<const unsigned*>(block + HalfBlock::vector(row, vector) + 4 * t);
    }
    template <int kBelow, class Visit>
    __device__ __forceinline__ void multiply_half_down(unsigned rows, unsigned inverses, HalfOperand (&column)[3], float2 scale,
                                                       float end, const float (&gates)[kChunk], Visit& visit) const {
        if (warp + kBelow > 3) return;
        const int first = half_block(warp + kBelow, warp) * static_cast<int>(sizeof(HalfBlock));
        Transposed sum = {}, odd = {}, next = {};  // two sums shorten the chain of dependent MMAs
        unsigned right[4];
#pragma unroll
        for (int m = 0; m < kBelow; ++m) {
            ldmatrix_x4(right, rows + first + m * sizeof(HalfBlock));
            Transposed& to = m % 2 == 0 ? sum : odd;
            mma_m16n8k16<DType::f16>(to[0], column[m], right[0], right[1]);
            mma_m16n8k16<DType::f16>(to[1], column[m], right[2], right[3]);
        }
        ldmatrix_x4_trans(right, inverses + first + kBelow * sizeof(HalfBlock));
        if constexpr (kBelow > 1)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] += odd[i / 4][i % 4];
        HalfOperand left;
        as_left<DType::f16>(left, sum[0], sum[1]);
        mma_m16n8k16<DType::f16>(next[0], left, right[0], 0);
        mma_m16n8k16<DType::f16>(next[1], left, right[2], right[3]);
        Transposed x;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 gate = pair_at(&gates[16 * (warp + kBelow) + 8 * n + 2 * t]);
            const float2 row = {exp2_fast(gate.x - end), exp2_fast(gate.y - end)};
#pragma unroll
            for (int i = 0; i < 4; ++i) x[n][i] = next[n][i] * (i < 2 ? scale.x : scale.y) * (i % 2 == 0 ? row.x : row.y);
        }
        visit(x, kBelow);
        if constexpr (kBelow < 3) {
            as_left<DType::f16>(column[kBelow], next[0], next[1]);
            multiply_half_down<kBelow + 1>(rows, inverses, column, scale, end, gates, visit);
        }
    }
};

}  // namespace gdn_cuda::gdn
