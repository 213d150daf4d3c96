// From the gradient of a decay's logarithm those of a channel's gate and of A_log.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>
#include <gdn_cuda/kernels/recurrence/decay_slopes.cuh>

namespace gdn_cuda::gdn {

template <ChannelGate kForm>
struct KdaGateSlopes {
    float rate_log, rate = 0.f, lower_bound;

    // A_log is 0 where the call has none.
    __device__ __forceinline__ KdaGateSlopes(float A_log, float lower_bound) : rate_log(A_log), lower_bound(lower_bound) {
        if constexpr (kForm == ChannelGate::softplus) rate = expf(A_log);
        if constexpr (kForm == ChannelGate::bounded) rate = bounded_rate(A_log);
    }
    // Whether the plain factors are right for the gate: tested for several gates at once, as a branch for each would make
    // them wait for each other.
    __device__ __forceinline__ bool is_plain(float z) const {
        return kForm != ChannelGate::softplus || !(rate_log > kLargestRateLog || z < kLowestOfSoftplus);
    }
    // The gradient of the gate z, or of the raw gate with its bias. Where that of the logarithm is 0 so is it: the factor may
    // be infinite. Adds A_log's.
    template <bool kPlain>
    __device__ __forceinline__ float gradient_of(float z, float gradient, float& by_rate_log) const {
        if constexpr (kForm == ChannelGate::bounded) {
            const float u = rate * z, by_u = gradient * bounded_slope(u);
            by_rate_log += by_u == 0.f ? 0.f : by_u * u;  // rate or u may be infinite
            return by_u == 0.f ? by_u : by_u * rate;
        }
        if constexpr (kForm == ChannelGate::softplus) {
            const Factors factors = kPlain ? softplus_factors(z) : any_softplus_factors(z);
            by_rate_log += gradient == 0.f ? 0.f : gradient * factors.rate_log;
            return gradient == 0.f ? gradient : gradient * factors.gate;
        }
        if constexpr (kForm == ChannelGate::decay) return gradient == 0.f ? gradient : gradient / z;
        return gradient;
    }

  private:
    struct Factors {
        float gate, rate_log;
    };
    // The derivative of -exp(A_log) softplus(z) by z and by A_log.
    __device__ __forceinline__ Factors any_softplus_factors(float z) const {
        return is_plain(z) ? softplus_factors(z) : Factors{log_decay_slope(rate_log, z), log_decay(rate_log, z)};
    }
    __device__ __forceinline__ Factors softplus_factors(float z) const {
        const float e = exp_fast(-fabsf(z)), reciprocal = reciprocal_fast(1.f + e);
        return {-rate * (z < 0.f ? e * reciprocal : reciprocal), -rate * (fmaxf(z, 0.f) + log1p_of_unit(e))};
    }
    // The derivative of lower_bound sigmoid(u).
    __device__ __forceinline__ float bounded_slope(float u) const {
        const float e = exp2_fast(fabsf(u) * -kLog2E), reciprocal = reciprocal_fast(1.f + e);
        return opaque(lower_bound * (e * reciprocal * reciprocal));  // not a branch for each gate
    }
};

}  // namespace gdn_cuda::gdn
