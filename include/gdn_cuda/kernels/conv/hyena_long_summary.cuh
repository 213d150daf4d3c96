// conv/hyena_long_summary: the states of hyena_long after a sequence, from what its segments add to them (conv/hyena_long with
// only_states), or in reverse the gradients of the states before it (conv/hyena_long_states):
//     x ← pⁿ x + added    over segments of n tokens, beginning with the initial state, or the gradient of the last
//
// A thread has one state of a channel. What decays to nothing before the result counts as zero, whatever was added: where all
// states of a channel do, the kernels above have not read the segment. Forward, segments have whole tiles; the thread adds the
// remaining tokens one by one.
//
// Bound: latency, of a load for every segment and of two for each of at most 511 tokens; under 0.01 ms on an H200 for 4096
// channels of 131072 tokens, beside 0.15 of the kernels above.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_long/pole_tables.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/summary_plan.cuh>

namespace gdn_cuda::conv {

template <HyenaLongSummaryConfig kConfig>
__global__ void __launch_bounds__(HyenaLongSummaryConfig::kThreads)
    hyena_long_summary(const __grid_constant__ HyenaLongSummaryArgs args) {
    using T = Storage<kConfig.io>;
    const HyenaLongArgs& in = args.forward;
    const i64 at = static_cast<i64>(blockIdx.x) * HyenaLongSummaryConfig::kThreads + threadIdx.x, row = at / in.states;
    const int state = static_cast<int>(at - row * in.states), batch = static_cast<int>(row / in.channels);
    if (batch >= in.batches) return;
    const int channel = static_cast<int>(row - static_cast<i64>(batch) * in.channels);
    const float log_pole = HyenaPoles(in, channel).log_pole(state);
    const float* const added = args.added + row * in.segments * in.states + state;
    const int tokens = in.tokens, length = in.segment_tokens;
    float x = 0.f;
    if (!decays_over(log_pole, tokens)) x = initial_at(args.first, batch, channel, in.states, in.states - state);
    const LongFactor whole(log_pole, length), last(log_pole, args.covered - (in.segments - 1) * length);
#pragma unroll 4
    for (int i = 0; i < in.segments; ++i) {
        const int segment = kConfig.reversed ? in.segments - 1 - i : i;
        const int until_result = kConfig.reversed ? segment * length : tokens - min((segment + 1) * length, args.covered);
        const float more = added[static_cast<i64>(segment) * in.states];
        if (decays_over(log_pole, until_result)) continue;
        x = (segment == in.segments - 1 ? last : whole).times_plus(x, more);
    }
    if constexpr (!kConfig.reversed) {
        const HyenaRow<T> x1(in.x1, batch, channel), v(in.v, batch, channel);
        const LongFactor one(log_pole, 1);
#pragma unroll 8
        for (int token = args.covered; token < tokens; ++token) x = one.times_plus(x, x1.at(token) * v.at(token));
    }
    args.result[at] = x;
}

}  // namespace gdn_cuda::conv
