// What conv/hyena_short_backward and conv/hyena_short_columns_backward share.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/backward_plan.cuh>

namespace gdn_cuda::conv {

// What the state behind the last token adds to the gradient of u at a token of any sign: 0 where the state does not have it.
__device__ __forceinline__ float of_last_at(const HyenaShortBackwardArgs& args, int batch, int channel, int token) {
    const int length = args.forward.filter.taps - 1, position = token - (args.forward.tokens - length);
    if (position < 0 || position >= length) return 0.f;
    return initial_at(args.of_last, batch, channel, length, length - position);
}

// Where a share's sums for a channel begin: of of_bias, times the number of taps of of_weight.
__device__ __forceinline__ i64 sums_of(const HyenaArgs& forward, const HyenaShare& share, int channel) {
    return (static_cast<i64>(share.batch) * forward.segments + share.segment) * forward.channels + channel;
}

}  // namespace gdn_cuda::conv
