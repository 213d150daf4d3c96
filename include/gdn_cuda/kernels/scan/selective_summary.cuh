// scan/selective_summary: the state after a sequence, or in reverse the gradient of the state before it, and the decay over the
// sequence, from the maps x ← product x + end of its segments that scan/selective_pieces wrote:
//     state = end₀ + product₀ (end₁ + product₁ (…)),   decay = product₀ product₁ …
// with segment 0 nearest to the result.
//
// A thread has one state of a sequence and iterates over the segments from the nearest, loading eight maps at a time, until the
// product of decays is negligible. What is further away has no part in the result, and the decay is 0. scan/selective_pieces
// may not have written the maps there.
//
// Bound: memory latency, once for eight segments.
#pragma once

#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_summary_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveSummaryConfig kConfig>
__global__ void __launch_bounds__(SelectiveSummaryConfig::kThreads)
    selective_summary(const __grid_constant__ SelectiveSummaryArgs args) {
    using Number = scan::Number<kConfig.is_complex>;
    constexpr int kAtOnce = SelectiveSummaryConfig::kAtOnce;
    const i64 all = args.sequences * args.states;
    const i64 at = static_cast<i64>(blockIdx.x) * SelectiveSummaryConfig::kThreads + threadIdx.x;
    if (at >= all) return;
    const auto *ends = static_cast<const Number*>(args.maps.ends) + at,
               *products = static_cast<const Number*>(args.maps.products) + at;
    const int sequence = static_cast<int>(at / args.states);
    const int count = segment_count(args.segments, span_of(args.cu_seqlens, sequence, args.length).length);
    const auto row = [&](int i) { return (args.reverse ? i : count - 1 - i) * all; };
    Number state{}, decay = one_of(Number{});
    bool is_left = true;
#pragma unroll 1
    for (int first = 0; first < count && is_left; first += kAtOnce) {
        Number end[kAtOnce] = {}, product[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < count) end[i] = ends[row(first + i)], product[i] = products[row(first + i)];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < count && is_left) {
                state = after_segment(end[i], decay, state);
                decay = decay * product[i];
                is_left = !is_negligible(decay);
            }
    }
    if (is_left && args.first != nullptr) state = after_segment(static_cast<const Number*>(args.first)[at], decay, state);
    static_cast<Number*>(args.state)[at] = state;
    static_cast<Number*>(args.decay)[at] = is_left ? decay : Number{};
}

}  // namespace gdn_cuda::scan
