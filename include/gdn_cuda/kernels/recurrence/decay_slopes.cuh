// Derivatives of logarithms of decays by what they are made of.
#pragma once

#include <gdn_cuda/kernels/recurrence/bounded_rate.cuh>

namespace gdn_cuda::gdn {

// The derivative of -exp(A_log) softplus(z) by z. exp(A_log) alone may be infinite.
__device__ __forceinline__ float log_decay_slope(float A_log, float z) {
    return -expf(A_log - softplus(-z));
}

}  // namespace gdn_cuda::gdn
