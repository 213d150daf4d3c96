// The decay of one channel of the key from its gate.
#pragma once

#include <gdn_cuda/kernels/recurrence/bounded_rate.cuh>
#include <gdn_cuda/kernels/recurrence/channel_gates.cuh>

namespace gdn_cuda::gdn {

constexpr float kLog2E = 1.44269504f;

// softplus(x) to 2e-6 with one special function; above 20 the sum is x in fp32. A logarithm of 1 + e^x instead would lose the
// digits of a small e^x, which exp(A_log) = 200 then multiplies.
__device__ __forceinline__ float channel_softplus(float x) {
    return fmaxf(x, 0.f) + log1p_of_unit(exp2_fast(fabsf(x) * -kLog2E));
}

// The decays of one head's channels. NaN passes; a decay below 2^-126 is 0, which resets its column of the state exactly.
template <ChannelGate kForm>
struct ChannelDecay {
    // Above e^60, exp(A_log) may overflow, or make a decay of a softplus below 2^-126.
    static constexpr float kLargestPlainRateLog = 60.f;

    float rate;  // softplus: -exp(A_log) log2(e); bounded: -exp(A_log)
    float bound;
    float rate_log;

    // A_log is 0 where the call has none.
    __device__ __forceinline__ ChannelDecay(float A_log, float lower_bound) : rate(0.f), bound(0.f), rate_log(A_log) {
        if constexpr (kForm == ChannelGate::softplus) rate = -expf(A_log) * kLog2E;
        if constexpr (kForm == ChannelGate::bounded) {
            rate = -bounded_rate(A_log);
            bound = lower_bound * kLog2E;
        }
    }
    // x: the gate; raw, a + dt_bias.
    __device__ __forceinline__ float operator()(float x) const {
        if constexpr (kForm == ChannelGate::log_decay) return exp2_fast(x * kLog2E);
        if constexpr (kForm == ChannelGate::softplus) {
            const float soft = channel_softplus(x);
            // The same branch for all channels of the head.
            // Special functions only: kernels unroll this for dozens of elements.
            if (rate_log > kLargestPlainRateLog)
                return exp2_fast(-kLog2E *
                                 exp2_fast(fmaf(rate_log, kLog2E, x < kLowestOfSoftplus ? x * kLog2E : __log2f(soft))));
            return exp2_fast(rate * soft);
        }
        if constexpr (kForm == ChannelGate::bounded)
            return exp2_fast(bound * reciprocal_fast(1.f + exp2_fast(rate * x * kLog2E)));
        return x;
    }
};

// Calls visit.operator()<form>() with the form as a constant.
template <class Visit>
__device__ __forceinline__ void with_channel_gate(ChannelGate form, Visit&& visit) {
    switch (form) {
        case ChannelGate::none:
            return;
        case ChannelGate::log_decay:
            return visit.template operator()<ChannelGate::log_decay>();
        case ChannelGate::softplus:
            return visit.template operator()<ChannelGate::softplus>();
        case ChannelGate::bounded:
            return visit.template operator()<ChannelGate::bounded>();
        case ChannelGate::decay:
            return visit.template operator()<ChannelGate::decay>();
    }
}

// An element of the state after its channel's decay: 0 where that is 0, as 0 times infinity would be NaN.
__device__ __forceinline__ float decayed(float s, float decay) {
    return decay == 0.f ? 0.f : decay * s;
}

}  // namespace gdn_cuda::gdn
