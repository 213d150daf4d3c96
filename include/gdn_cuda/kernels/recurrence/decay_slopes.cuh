// Derivatives of logarithms of decays by what they are made of.
#pragma once

#include <gdn_cuda/kernels/recurrence/bounded_rate.cuh>

namespace gdn_cuda::gdn {

// The derivative of -exp(A_log) softplus(z) by z. exp(A_log) alone may be infinite.
__device__ __forceinline__ float log_decay_slope(float A_log, float z) {
    return -expf(A_log - softplus(-z));
}

// The derivatives of lower_bound sigmoid(exp(A_log) z) by z and by A_log.
struct BoundedSlopes {
    float by_raw, by_rate_log;

    __device__ __forceinline__ BoundedSlopes(float A_log, float lower_bound, float z) {
        const float rate = bounded_rate(A_log), u = rate * z, slope = lower_bound * sigmoid(u) * sigmoid(-u);
        by_raw = slope == 0.f ? 0.f : slope * rate;
        by_rate_log = slope == 0.f ? 0.f : slope * u;
    }
};

}  // namespace gdn_cuda::gdn
