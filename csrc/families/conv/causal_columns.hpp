// The grid of kernels in which channels are neighbours in memory (kernels/conv/causal_columns.cuh).
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_plan.cuh>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::conv {

// Tokens of a warp: the rows in front of a segment are read twice, and every SM has to have warps to spare. `channels`: of a
// block.
inline constexpr int kShortSegment = 32, kLongSegment = 64;
constexpr int column_segment(const CausalArgs& args, int channels, const jit::DeviceTraits& device) {
    constexpr i64 kManyWarps = 60;  // of an SM, two to three times those that it holds
    const i64 groups = args.batches * ceil_div(args.channels, channels);
    return groups * ceil_div(args.tokens, kLongSegment) >= kManyWarps * device.multiprocessors ? kLongSegment : kShortSegment;
}

constexpr Blocks column_blocks(const CausalArgs& args, int segment, const auto& config) {
    const i64 of_block = i64{segment} * (config.threads() / 32);
    return {args.batches * ceil_div(args.channels, config.channels()) * ceil_div(args.tokens, of_block), 1, 1};
}

}  // namespace gdn_cuda::conv
