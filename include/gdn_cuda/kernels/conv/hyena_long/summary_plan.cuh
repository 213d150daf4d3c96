// Configuration and arguments of conv/hyena_long_summary, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_long/plan.cuh>

namespace gdn_cuda::conv {

struct HyenaLongSummaryConfig {
    DType io;       // dtype of x1 and v
    bool reversed;  // gradients of the states before the sequence; otherwise the states after it

    constexpr bool operator==(const HyenaLongSummaryConfig&) const = default;
    static constexpr int kThreads = 128;

    GDN_FIELDS(io, reversed)
};

struct HyenaLongSummaryArgs {
    HyenaLongArgs forward;  // tokens: all; segments: of whole tiles forward, in reverse of all tokens
    HyenaInitial first;     // states before the sequence, or gradients of those after it
    const float* added;     // (batch, channel, segment, state)
    float* result;          // (batch, channel, state)
    int covered;            // tokens that the segments have
};

}  // namespace gdn_cuda::conv
