// The grid of kernels whose channels are contiguous in memory (kernels/conv/causal_conv/channels_last_rows.cuh).
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::conv {

// Tokens per warp. The W - 1 rows before a segment are read twice, so segments are as long as leaves every SM warps to
// spare; `longest` of the long ones. `channels`: per warp.
inline constexpr int kShortestSegment = 16, kLongestSegment = 64;
// With up to four taps, shorter segments take less time on an H200; with eight taps, more.
inline constexpr int kLongestOfFewTaps = 32;
constexpr int longest_without_sequences(DType io, int taps) {
    return taps > 4 ? kLongestSegment : bytes_of(io) == 2 ? 16 : kLongestOfFewTaps;
}
constexpr int column_segment(const CausalArgs& args, int channels, const jit::DeviceTraits& device,
                             int longest = kLongestSegment) {
    constexpr i64 kManyWarps = 60;  // per SM, two to three times those that it holds
    const i64 groups = args.batches * ceil_div(args.channels, channels);
    int segment = kLongestSegment;
    while (segment > kShortestSegment && groups * ceil_div(args.tokens, segment) < kManyWarps * device.multiprocessors)
        segment /= 2;
    return std::min(segment, longest);
}

constexpr Blocks column_blocks(const CausalArgs& args, int segment, const auto& config) {
    const i64 warps = args.batches * ceil_div(args.channels, config.channels()) * ceil_div(args.tokens, segment);
    return {ceil_div(warps, config.threads() / 32), 1, 1};
}

}  // namespace gdn_cuda::conv
