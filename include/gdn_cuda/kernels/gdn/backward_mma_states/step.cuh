// What a chunk does to a warp's rows of the state S, forward, or of its gradient E, backward (backward_mma_states.cuh).
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_states/plan.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/rows.cuh>

namespace gdn_cuda::gdn {

// products = S k^T. Stores S, rounded, at `to`: (row, column) of the warp's head and chunk.
template <class Owner>
__device__ __forceinline__ void multiply_keys(Owner& own, MmaLane::TokenSums& products, const MmaTile* keys,
                                              typename Owner::Io* to) {
    own.clear(products);
    const int row = own.first_row() + own.g, dk = own.call.dk;
    const bool exists[] = {row < own.call.dv, row + 8 < own.call.dv};
    to += static_cast<i64>(row) * dk + 2 * own.t;
#pragma unroll
    for (int step = 0; step < Owner::kStateSteps; ++step) {
        unsigned left[4];
        as_left<Owner::kIo>(left, own.state[2 * step], own.state[2 * step + 1]);
        own.template add_token_products<Owner::kIo>(products, left, keys, step);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (const int column = 16 * step + 8 * (i / 2); exists[i % 2] && column < dk)
                *reinterpret_cast<unsigned*>(to + i % 2 * 8 * dk + column) = left[i];
    }
}
// 16 tokens of the warp's columns of the value tile as an operand.
template <class Owner>
__device__ __forceinline__ void load_operand(const Owner& own, unsigned (&x)[4], int step) {
    ldmatrix_x4_trans(x, own.crossed_vector(own.value_tile().bytes, own.warp % 4) + step * Owner::kRowBlockBytes);
}

// ---- Forward

// X = v - exp(G) k S^T, as operands.
template <class Owner>
__device__ __forceinline__ void form_x(const Owner& own, TokenOperands& x, const MmaLane::TokenSums& products) {
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        load_operand(own, x[step], step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int n = 2 * step + i / 2;
            const float2 factor = own.pair_of(own.shared.factors.key_state, n), v = unpack<Owner::kIo>(x[step][i]);
            x[step][i] = pack<Owner::kIo>(v.x - factor.x * products[n][i % 2 * 2], v.y - factor.y * products[n][i % 2 * 2 + 1]);
        }
    }
}
// R = V' / beta, to the value tile, and its rounding residual.
template <class Owner>
__device__ __forceinline__ void stage_errors(const Owner& own, const MmaLane::TokenSums& v, const MmaTile& residual) {
    const unsigned rounded_at = own.first_staged(own.value_tile()), residual_at = own.first_staged(residual);
#pragma unroll
    for (int n = 0; n < 2 * Owner::kTokenSteps; ++n) {
        const float2 beta = own.pair_of(own.shared.factors.beta, n);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float x = v[n][2 * half] / beta.x, y = v[n][2 * half + 1] / beta.y;
            const unsigned rounded = pack<Owner::kIo>(x, y);
            own.stage_pair(rounded_at, n, half, rounded);
            own.stage_pair(residual_at, n, half, pack_residual<Owner::kIo>(x, y, rounded));
        }
    }
    __syncwarp();
}

// ---- Backward

// sums += left M, where M is lower triangular: of 16 of its rows, those with tokens 16 step and on.
template <int kParts, class Owner, class BlockAt>
__device__ __forceinline__ void add_rows(const Owner& own, MmaLane::TokenSums& sums, const unsigned (&left)[kParts][4],
                                         int step, BlockAt&& block_at) {
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
        for (int block = 0; block <= step; ++block) {
            unsigned right[4];
            own.load_part_as_is(right, block_at(step, block).parts[part]);
#pragma unroll
            for (int i = 0; i < kParts && i + part < 2; ++i) {
                mma_m16n8k16<Owner::kIo>(sums[2 * block], left[i], right[0], right[1]);
                mma_m16n8k16<Owner::kIo>(sums[2 * block + 1], left[i], right[2], right[3]);
            }
        }
}
// From E k^T to dV' = E k^T exp(G_C - G) + dO^T P.
template <class Owner>
__device__ __forceinline__ void add_scores(const Owner& own, MmaLane::TokenSums& v) {
#pragma unroll
    for (int n = 0; n < 2 * Owner::kTokenSteps; ++n) {
        const float2 factor = own.pair_of(own.shared.factors.update, n);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[n][i] *= i % 2 == 0 ? factor.x : factor.y;
    }
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        unsigned left[1][4];
        load_operand(own, left[0], step);
        add_rows(own, v, left, step, [&](int row, int column) -> const TwoPartBlock& {
            return own.shared.scores[ChunkTriangle::index_of(row, column)];
        });
    }
}
// dV = dV' T.
template <class Owner>
__device__ __forceinline__ void apply_inverse_transposed(const Owner& own, MmaLane::TokenSums& dv,
                                                         const MmaLane::TokenSums& v) {
    own.clear(dv);
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        unsigned left[2][4];
        own.in_two_parts(left, v, step);
        add_rows(own, dv, left, step, [&](int row, int column) -> const TwoPartBlock& {
            return as_two_parts(own.shared.inverse.block(row, column));
        });
    }
}
// E <- exp(G_C) E + (scale exp(G) dO)^T q. Loads dO once more: there are no registers to keep it.
template <class Owner>
__device__ __forceinline__ void add_queries(Owner& own) {
    own.decay_state();
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        unsigned operand[4];
        load_operand(own, operand, step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<Owner::kIo>(operand[i]),
                         factor = own.pair_of(own.shared.factors.query_state, 2 * step + i / 2);
            operand[i] = pack<Owner::kIo>(pair.x * factor.x, pair.y * factor.y);
        }
#pragma unroll
        for (int k = 0; k < Owner::kStateSteps; ++k) {
            unsigned right[4];
            ldmatrix_x4_trans(right, own.straight_vector(own.shared.query, k) + step * Owner::kRowBlockBytes);
            mma_m16n8k16<Owner::kIo>(own.state[2 * k], operand, right[0], right[1]);
            mma_m16n8k16<Owner::kIo>(own.state[2 * k + 1], operand, right[2], right[3]);
        }
    }
}
// E <- E - (exp(G) dV)^T k.
template <class Owner>
__device__ __forceinline__ void subtract_keys(Owner& own, MmaLane::TokenSums& dv, const MmaTile* keys) {
#pragma unroll
    for (auto& tile : dv)
#pragma unroll
        for (float& x : tile) x = -x;
    own.add_tokens(dv, own.shared.factors.key_state, keys);
}

}  // namespace gdn_cuda::gdn
