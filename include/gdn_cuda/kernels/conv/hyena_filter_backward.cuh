// What the gradients of conv/hyena_filter sum up to, for a piece of a row: Σ_t g_t p^t and Σ_t g_t t p^t, of every pole p.
//
// A warp has a few poles, with two sums each in registers, and walks the piece; the warps of a block read the same gradients,
// all but once from L1. Tokens and powers are as in hyena_filter. Pieces have one length, so the sums, and what the host adds
// up, are the same on every device.
//
// Bound by fp32 multiply-adds, 2 S a token; bytes are 4 a token.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_filter/powers.cuh>

namespace gdn_cuda::conv {

template <HyenaFilterBackwardConfig kConfig>
__global__ void __launch_bounds__(kHyenaFilterThreads) hyena_filter_backward(const __grid_constant__ HyenaFilterArgs args) {
    constexpr int kStates = kConfig.states;
    const i64 pieces = ceil_div(args.tokens, kConfig.tokens()), groups = ceil_div(args.count, kConfig.block_states());
    const i64 group = blockIdx.x % groups, piece = blockIdx.x / groups % pieces, row = blockIdx.x / groups / pieces;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_state = static_cast<int>(group) * kConfig.block_states() + warp * kStates;
    if (first_state >= args.count) return;

    float log_poles[kStates], sums[kStates]{}, moments[kStates]{};
    HyenaFilterPowers powers[kStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        log_poles[s] = first_state + s < args.count ? args.log_poles[row * args.count + first_state + s] : 0.f;
        powers[s] = powers_of_lane(log_poles[s]);
    }
    const float* const grad = args.grad + row * args.tokens;
    for (int stretch = 0; stretch < kConfig.stretches; ++stretch) {
        const i64 first = piece * kConfig.tokens() + stretch * kHyenaFilterStretch + lane;
        if (first - lane >= args.tokens) break;
        float g[kHyenaFilterLaneTokens];
#pragma unroll
        for (int i = 0; i < kHyenaFilterLaneTokens; ++i) g[i] = first + 32 * i < args.tokens ? grad[first + 32 * i] : 0.f;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float sum = 0.f, moment = 0.f;
#pragma unroll
            for (int i = 0; i < kHyenaFilterLaneTokens; ++i) {
                const float term = g[i] * powers[s].of[i];
                sum += term;
                moment = fmaf(32.f * i, term, moment);
            }
            const float t = static_cast<float>(first), power = power_of_pole(log_poles[s], t);
            sums[s] = fmaf(power, sum, sums[s]);
            moments[s] = fmaf(power, fmaf(t, sum, moment), moments[s]);
        }
    }
    const i64 numbers = static_cast<i64>(args.rows) * args.count;
    float* const to = args.sums + 2 * piece * numbers + row * args.count;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        const float sum = group_sum<32>(sums[s]), moment = group_sum<32>(moments[s]);
        if (lane == 0 && first_state + s < args.count) {
            to[first_state + s] = sum;
            to[numbers + first_state + s] = moment;
        }
    }
}

}  // namespace gdn_cuda::conv
