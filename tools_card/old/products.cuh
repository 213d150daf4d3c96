// Products of 64 rows in registers with a chunk's tokens or matrices in shared memory, and what is done with a fragment between
// two of them. All are transposed (rows of the state x tokens), so that a result, rounded, is the next product's left operand.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/matrix.cuh>
#include <gdn_cuda/kernels/hopper/fragment.cuh>

namespace gdn_cuda::gdn {

constexpr int kTokenSteps = kChunk / 16;
using TokenFragment = float[kChunk / 2];        // 64 rows x a chunk's tokens
using TokenOperand = unsigned[kTokenSteps][4];  // the same, rounded
using TokenFactors = float2[2 * kTokenSteps];   // this thread's tokens'

// d = or += left right^T, right K-major: keys, queries, or a matrix over tokens.
template <DType kIo, int kSteps>
__device__ __forceinline__ void start_product(TokenFragment& d, const unsigned (&left)[kSteps][4], const SwizzledTile* right,
                                              bool add = false) {
    const auto operand = tile_operand(right, 0);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
        Product<kIo, 64, true>::run(d, left[step], operand + k_major_step(step), add || step > 0);
    cute::warpgroup_commit_batch();
}
// A pair of elements by one instruction, or by two. Where products round the same state, ptxas would keep what the first has
// rounded for the second, and spill; it does not see that both ways give the same.
enum class Rounding { plain, swapped };

// d = state right^T, right K-major, of a state that is rounded some columns at a time, as registers are short. The last
// columns' is in flight then; after_earlier: called once earlier products have ended.
template <DType kIo, Rounding kRounding, int kElements, class AfterEarlier>
__device__ __forceinline__ void start_state_product(TokenFragment& d, const float (&state)[kElements],
                                                    const SwizzledTile* right, AfterEarlier&& after_earlier) {
    constexpr int kSteps = kElements / 8, kStepsAtOnce = 2;
    const auto operand = tile_operand(right, 0);
#pragma unroll
    for (int first = 0; first < kSteps; first += kStepsAtOnce) {
        unsigned rounded[kStepsAtOnce][4];
#pragma unroll
        for (int step = 0; step < kStepsAtOnce; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &state[8 * (first + step) + 2 * i];
                rounded[step][i] = kRounding == Rounding::plain ? pack<kIo>(pair[0], pair[1])
                                                                : __byte_perm(pack<kIo>(pair[1], pair[0]), 0, 0x1032);
            }
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kStepsAtOnce; ++step)
            Product<kIo, 64, true>::run(d, rounded[step], operand + k_major_step(first + step), first + step > 0);
        cute::warpgroup_commit_batch();
        cute::warpgroup_wait<1>();
        if (first == 0) after_earlier();
    }
}
template <DType kIo, Rounding kRounding, int kElements>
__device__ __forceinline__ void start_state_product(TokenFragment& d, const float (&state)[kElements],
                                                    const SwizzledTile* right) {
    start_state_product<kIo, kRounding>(d, state, right, [] {});
}
// d += or = left right, right MN-major: tokens, to update a state, or a matrix over tokens.
template <DType kIo, int kElements>
__device__ __forceinline__ void start_product_mn(float (&d)[kElements], const TokenOperand& left, const SwizzledTile* right,
                                                 bool add = true) {
    const auto operand = tile_operand(right, sizeof(SwizzledTile));
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
        Product<kIo, 2 * kElements, false>::run(d, left[step], operand + mn_major_step(step), add || step > 0);
    cute::warpgroup_commit_batch();
}

// A tile of tokens x this warpgroup's 64 rows as a left operand, transposed by ldmatrix.
__device__ __forceinline__ void load_operand(TokenOperand& x, const SwizzledTile& tile, const Lane& lane) {
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) ldmatrix_x4_trans(x[step], lane.matrix_row(tile) + step * kMnMajorStep);
}

// Calls visit(step, i, x, y) for each pair of elements in register i of the left operand over tokens.
template <class Visit>
__device__ __forceinline__ void for_each_token_pair(TokenFragment& x, Visit&& visit) {
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(step, i, x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
}
// Read while wgmmas are in flight.
__device__ __forceinline__ void read_factors(TokenFactors& own, const float (&factors)[kChunk], int t) {
#pragma unroll
    for (int i = 0; i < 2 * kTokenSteps; ++i) own[i] = pair_at(&factors[8 * i + 2 * t]);
}
__device__ __forceinline__ void scale_tokens(TokenFragment& d, const TokenFactors& factors) {
    for_each_token_pair(d, [&](int step, int i, float& x, float& x_next) {
        x *= factors[2 * step + i / 2].x;
        x_next *= factors[2 * step + i / 2].y;
    });
}

// Rounded to a left operand: d; d times factors; and the rounding residual of d.
template <DType kIo>
__device__ __forceinline__ void pack_tokens(TokenOperand& x, TokenFragment& d) {
    for_each_token_pair(d, [&](int step, int i, float& v, float& v_next) { x[step][i] = pack<kIo>(v, v_next); });
}
template <DType kIo>
__device__ __forceinline__ void pack_scaled_tokens(TokenOperand& x, TokenFragment& d, const TokenFactors& factors) {
    for_each_token_pair(d, [&](int step, int i, float& v, float& v_next) {
        const float2 factor = factors[2 * step + i / 2];
        x[step][i] = pack<kIo>(v * factor.x, v_next * factor.y);
    });
}
template <DType kIo>
__device__ __forceinline__ void pack_scaled_tokens_residual(TokenOperand& residual, TokenFragment& d,
                                                            const TokenFactors& factors, const TokenOperand& x) {
    for_each_token_pair(d, [&](int step, int i, float& v, float& v_next) {
        const float2 factor = factors[2 * step + i / 2];
        residual[step][i] = pack_residual<kIo>(v * factor.x, v_next * factor.y, x[step][i]);
    });
}
template <DType kIo>
__device__ __forceinline__ void pack_tokens_residual(TokenOperand& residual, TokenFragment& d, const TokenOperand& x) {
    for_each_token_pair(
        d, [&](int step, int i, float& v, float& v_next) { residual[step][i] = pack_residual<kIo>(v, v_next, x[step][i]); });
}

// X = values - key_scale d, rounded: what a chunk adds to the rows of a state that already gives d for its keys.
template <DType kIo>
__device__ __forceinline__ void form_x(TokenOperand& x, const TokenOperand& values, TokenFragment& d,
                                       const TokenFactors& key_scale) {
    for_each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
        const float2 key = key_scale[2 * step + i / 2], v = unpack<kIo>(values[step][i]);
        x[step][i] = pack<kIo>(v.x - key.x * s, v.y - key.y * s_next);
    });
}

}  // namespace gdn_cuda::gdn
