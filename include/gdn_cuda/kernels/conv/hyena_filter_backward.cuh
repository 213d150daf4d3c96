// conv/hyena_filter_backward: the sums that give the gradients of conv/hyena_filter, over a segment of a row: Σ_t g_t p^t
// and Σ_t g_t t p^t for every pole p.
//
// A warp has a few poles, with two sums each in registers, and iterates over the segment; the warps of a block read the same
// gradients, all but once from L1. Tokens and powers are as in conv/hyena_filter. All segments have the same length on every
// device, so the sums, and what the host adds up, have the same bits.
//
// Bound: fp32 FMAs, 2 S a token; memory traffic is 4 bytes a token.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_filter/powers.cuh>

namespace gdn_cuda::conv {

template <HyenaFilterBackwardConfig kConfig>
__global__ void __launch_bounds__(kHyenaFilterThreads) hyena_filter_backward(const __grid_constant__ HyenaFilterArgs args) {
    constexpr int kStates = kConfig.states;
    const i64 segments = ceil_div(args.tokens, kConfig.tokens()), groups = ceil_div(args.count, kConfig.block_states());
    const i64 group = blockIdx.x % groups, segment = blockIdx.x / groups % segments, row = blockIdx.x / groups / segments;
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
        const i64 first = segment * kConfig.tokens() + stretch * kHyenaFilterStretch + lane;
        if (first - lane >= args.tokens) break;
        float g[kHyenaFilterLaneTokens];
#pragma unroll
        for (int i = 0; i < kHyenaFilterLaneTokens; ++i) g[i] = first + 32 * i < args.tokens ? grad[first + 32 * i] : 0.f;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float sum = 0.f, moment = 0.f;
#pragma unroll
            for (int i = 0; i < kHyenaFilterLaneTokens; ++i) {
                const float term = g[i] * powers[s].values[i];
                sum += term;
                moment = fmaf(32.f * i, term, moment);
            }
            const float t = static_cast<float>(first), power = power_of_pole(log_poles[s], t);
            sums[s] = fmaf(power, sum, sums[s]);
            moments[s] = fmaf(power, fmaf(t, sum, moment), moments[s]);
        }
    }
    const i64 row_values = static_cast<i64>(args.rows) * args.count;
    float* const to = args.sums + 2 * segment * row_values + row * args.count;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        const float sum = group_sum<32>(sums[s]), moment = group_sum<32>(moments[s]);
        if (lane == 0 && first_state + s < args.count) {
            to[first_state + s] = sum;
            to[row_values + first_state + s] = moment;
        }
    }
}

}  // namespace gdn_cuda::conv
