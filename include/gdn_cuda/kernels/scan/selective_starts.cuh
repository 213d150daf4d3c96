// scan/selective_starts: applies the maps that scan/selective_pieces wrote, one after another, and replaces their `ends` by the
// states before each segment, or in reverse by the gradients of the states after it.
//
// A thread has one state of a sequence and iterates over the segments, loading eight maps at a time.
//
// Bound: memory latency, once for eight segments.
#pragma once

#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_starts_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveStartsConfig kConfig>
__global__ void __launch_bounds__(SelectiveStartsConfig::kThreads)
    selective_starts(const __grid_constant__ SelectiveStartsArgs args) {
    using Number = scan::Number<kConfig.is_complex>;
    constexpr int kAtOnce = SelectiveStartsConfig::kAtOnce;
    const i64 all = args.sequences * args.states;
    const i64 state = static_cast<i64>(blockIdx.x) * SelectiveStartsConfig::kThreads + threadIdx.x;
    if (state >= all) return;
    auto *ends = static_cast<Number*>(args.maps.ends) + state, *products = static_cast<Number*>(args.maps.products) + state;
    const int sequence = static_cast<int>(state / args.states);
    const int count = segment_count(args.segments, span_of(args.cu_seqlens, sequence, args.length).length);
    const auto row = [&](int i) { return (args.reverse ? count - 1 - i : i) * all; };
    Number x{};
    if (args.first != nullptr) x = static_cast<const Number*>(args.first)[state];
#pragma unroll 1
    for (int first = 0; first < count; first += kAtOnce) {
        Number end[kAtOnce] = {}, product[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i + 1 < count)
                end[i] = ends[row(first + i)], product[i] = products[row(first + i)];  // the last segment has no map
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < count) {
                ends[row(first + i)] = x;
                x = after_segment(x, product[i], end[i]);
            }
    }
}

}  // namespace gdn_cuda::scan
