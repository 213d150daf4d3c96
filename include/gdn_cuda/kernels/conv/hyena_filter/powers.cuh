// Powers of poles, e^{log_pole · t}, for any number of tokens.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/conv/hyena_filter/plan.cuh>

namespace gdn_cuda::conv {

// Corrects for the rounding error of log_pole · t, which would be 5e-6 of a power of 1e-38. 0⁰ = 1.
__device__ __forceinline__ float power_of_pole(float log_pole, float t) {
    constexpr float kLowest = -200.f;
    if (t == 0.f) return 1.f;
    const float exponent = log_pole * t;
    const float residual = exponent > kLowest ? fmaf(log_pole, t, -exponent) : 0.f;
    const float power = exp_fast(exponent);
    return fmaf(power, residual, power);
}

__device__ __forceinline__ HyenaFilterPowers powers_of_lane(float log_pole) {
    HyenaFilterPowers powers;
#pragma unroll
    for (int i = 0; i < kHyenaFilterLaneTokens; ++i) powers.values[i] = power_of_pole(log_pole, 32.f * i);
    return powers;
}

}  // namespace gdn_cuda::conv
