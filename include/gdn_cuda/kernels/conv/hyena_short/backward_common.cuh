// Shared by conv/hyena_short_backward and conv/hyena_short_columns_backward.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/backward_plan.cuh>

namespace gdn_cuda::conv {

// What the gradient of the final state adds to that of u at a token, which may be negative; 0 if the state does not hold the
// token.
__device__ __forceinline__ float last_state_gradient(const HyenaShortBackwardArgs& args, int batch, int channel, int token) {
    const int length = args.forward.filter.taps - 1, position = token - (args.forward.tokens - length);
    if (position < 0 || position >= length) return 0.f;
    return initial_at(args.grad_state, batch, channel, length, length - position);
}

// The offset of a segment's sum for a channel in dbias; in dweight, to be multiplied by the number of taps.
__device__ __forceinline__ i64 sums_of(const HyenaArgs& forward, const HyenaSegment& segment, int channel) {
    return (static_cast<i64>(segment.batch) * forward.segments + segment.index) * forward.channels + channel;
}

}  // namespace gdn_cuda::conv
