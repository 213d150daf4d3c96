// From a chunk's gradients of betas, of logarithms of decays, and of normalised queries and keys, those of the call's tensors.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/gate_slopes.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/within.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ unsigned short rounded_bits(float x, DType type) {
    return type == DType::bf16 ? __bfloat16_as_ushort(from_float<__nv_bfloat16>(x)) : __half_as_ushort(from_float<__half>(x));
}

// From the gradient of a token's beta that of what the call has.
__device__ __forceinline__ float beta_gradient(const GdnCall& call, const KdaPlace& place, int token, i64 head,
                                               float gradient) {
    if (!call.forms.beta_is_logit || gradient == 0.f) return gradient;
    const float logit = load_alone(call.beta.values, scalar_offset(call.beta, place.sequence, place.first + token, head));
    return gradient * (call.forms.beta_factor * sigmoid(logit) * sigmoid(-logit));
}

// A channel's gradients of A_log and dt_bias, over the tokens.
struct KdaGateSums {
    float A_log, dt_bias;
};
// Stores those of a channel's gates, at `first` and every `step` elements; decay(token): of the decay's logarithm, gate(token):
// the gate with its bias.
template <class Decay, class Gate>
__device__ __forceinline__ KdaGateSums store_kda_gate_gradients(const GdnCall& call, const KdaChannel& x, i64 head, int tokens,
                                                                const Tagged& gradients, i64 first, i64 step, Decay&& decay,
                                                                Gate&& gate) {
    const DType type = gradients.type;
    void* const to = const_cast<void*>(gradients.data);
    float by_rate = 0.f, by_bias = 0.f;
    with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() {
        const KdaGateSlopes<kForm> gate_gradient(x.rate_log_of(call, head), call.channels.lower_bound);
        const auto store = [&](auto* at, auto&& rounded) {
            constexpr int kAtOnce = 4;
#pragma unroll 1
            for (int first = 0; first < kKdaTokens; first += kAtOnce) {
                float z[kAtOnce], found[kAtOnce];
                bool is_plain = true;
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    z[i] = gate(first + i);
                    found[i] = first + i < tokens ? decay(first + i) : 0.f;
                    is_plain &= gate_gradient.is_plain(z[i]);
                }
                const auto pass = [&]<bool kPlain>() {
#pragma unroll
                    for (int i = 0; i < kAtOnce; ++i)
                        found[i] = gate_gradient.template gradient_of<kPlain>(z[i], found[i], by_rate);
                };
                if (is_plain) [[likely]]
                    pass.template operator()<true>();
                else
                    pass.template operator()<false>();
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i, at += step) {
                    by_bias += found[i];
                    if (first + i < tokens) *at = rounded(found[i]);
                }
            }
        };
        if (type == DType::f32)
            store(static_cast<float*>(to) + first, [](float x) { return x; });
        else
            store(static_cast<unsigned short*>(to) + first, [&](float x) { return rounded_bits(x, type); });
    });
    return {by_rate, by_bias};
}

// Through the norms: x / |x| has the gradient (dx - x (x.dx)) / |x|, x and dx those of the normalised row. By the threads of
// all channels, a warp for each row of `dots`; the first row becomes the sums, total(which, sum).
template <int kWarps, class Sync, class Total>
__device__ __forceinline__ void pass_kda_norms(const KdaChannel& x, KdaChannelGradients& gradients,
                                               float (&dots)[kWarps][2 * kKdaTokens], const float* query_norm,
                                               const float* key_norm, int thread, Sync&& sync, Total&& total) {
    float products[2 * kKdaTokens];
#pragma unroll
    for (int i = 0; i < kKdaTokens; ++i) {
        products[i] = x.query[i] * gradients.query[i];
        products[kKdaTokens + i] = x.key[i] * gradients.key[i];
    }
    dots[thread / 32][thread % 32] = transposed_sum<16>(products);
    sync();
    if (thread < 2 * kKdaTokens) {
        float sum = 0.f;
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) sum += dots[warp][thread];
        dots[0][thread] = total(thread, sum);
    }
    sync();
#pragma unroll
    for (int i = 0; i < kKdaTokens; ++i) {
        gradients.query[i] = query_norm[i] * (gradients.query[i] - x.query[i] * dots[0][i]);
        gradients.key[i] = key_norm[i] * (gradients.key[i] - x.key[i] * dots[0][kKdaTokens + i]);
    }
}

}  // namespace gdn_cuda::gdn
