// The gates of a thread of gdn/kda_gradients, two channels of an eighth's tokens, and their gradients.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/gate_slopes.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

// Bytes of `count` elements, without bytes_of's branches.
__device__ __forceinline__ i64 gate_bytes(i64 count, DType type) {
    return count << (type == DType::f32 ? 2 : 1);
}

// The gates, or raw gates and their bias: all loads in flight together.
struct KdaGatePairs {
    static constexpr int kTokens = KdaGradientsConfig::kTokens;

    uint2 bits[kTokens];  // fp32, or both in the first
    RawElement bias[2], rate_log;
    DType type, bias_type, rate_type;

    // from: the first channel of the block, at the first token. `tokens`: of these channels, 0 if they do not exist. `own`: the
    // first one, in the block, and `channel`, of all.
    __device__ __forceinline__ KdaGatePairs(const GdnCall& call, const char* from, int tokens, i64 head, int own, int channel)
        : type(call.gate.values.type), bias_type(call.dt_bias.type), rate_type(call.A_log.type) {
        const i64 first = own * call.channels.channel;
        // One branch on the dtype for all: loads of both sizes into one register would wait for each other.
        if (type == DType::f32)
            load<uint2, unsigned>(reinterpret_cast<const unsigned*>(from) + first, call, tokens);
        else
            load<unsigned, unsigned short>(reinterpret_cast<const unsigned short*>(from) + first, call, tokens);
        if (tokens > 0 && call.dt_bias.data != nullptr) {
            const i64 at = head * call.channels.bias_head + channel;
            bias[0].load(call.dt_bias, at);
            bias[1].load(call.dt_bias, at + 1);
        }
        if (call.A_log.data != nullptr) rate_log.load(call.A_log, head);
    }
    __device__ __forceinline__ float to_rate_log() const { return rate_log.to_float(rate_type); }
    // With the bias: channels of token i at 2 i and 2 i + 1. Opaque: each form of gates would convert them anew, all ahead of
    // the branch on the form.
    __device__ __forceinline__ void convert(float (&to)[2 * kTokens]) const {
        const float first = bias[0].to_float(bias_type), second = bias[1].to_float(bias_type);
        const auto each = [&](auto&& pair) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                const float2 both = pair(bits[i]);
                to[2 * i] = opaque(both.x + first);
                to[2 * i + 1] = opaque(both.y + second);
            }
        };
        if (type == DType::f32)
            each([](uint2 x) { return float2{__uint_as_float(x.x), __uint_as_float(x.y)}; });
        else if (type == DType::bf16)
            each([](uint2 x) { return unpack<DType::bf16>(x.x); });
        else
            each([](uint2 x) { return unpack<DType::f16>(x.x); });
    }

  private:
    template <class Both, class Bits>
    __device__ __forceinline__ void load(const Bits* from, const GdnCall& call, int tokens) {
        const i64 step = call.gate.token;
        constexpr i64 kBoth = sizeof(Both);
        const bool paired = call.channels.channel == 1 &&
                            ((reinterpret_cast<i64>(from) | step * static_cast<i64>(sizeof(Bits))) & (kBoth - 1)) == 0;
        if (paired && tokens >= kTokens) [[likely]] {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, from += step) set(bits[i], *reinterpret_cast<const Both*>(from));
            return;
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i, from += step) {
            bits[i] = {};
            if (i < tokens) set(bits[i], from[0], from[call.channels.channel]);
        }
    }
    __device__ __forceinline__ static void set(uint2& to, uint2 both) { to = both; }
    __device__ __forceinline__ static void set(uint2& to, unsigned both) { to.x = both; }
    __device__ __forceinline__ static void set(uint2& to, unsigned first, unsigned second) { to = {first, second}; }
    __device__ __forceinline__ static void set(uint2& to, unsigned short first, unsigned short second) {
        to.x = first | static_cast<unsigned>(second) << 16;
    }
};

// Gradients of A_log and dt_bias over an eighth's tokens.
struct KdaGatePairSums {
    float2 A_log, dt_bias;
};
// Stores those of the gates, at `to` and every `step` elements; decay(first, i): of the decays' logarithms, of token
// first + i, where `first` is a multiple of 4; gate(first, i): the gates with their bias.
template <class Decay, class Gate>
__device__ __forceinline__ KdaGatePairSums store_kda_gate_pairs(const GdnCall& call, float rate_log, int tokens, char* to,
                                                                DType type, i64 step, Decay&& decay, Gate&& gate) {
    constexpr int kTokens = KdaGradientsConfig::kTokens, kAtOnce = 4;
    KdaGatePairSums sums{};
    with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() {
        const KdaGateSlopes<kForm> gate_gradient(rate_log, call.channels.lower_bound);
        const auto store = [&](auto* at, auto&& rounded) {
#pragma unroll 1
            for (int first = 0; first < kTokens; first += kAtOnce) {
                float2 z[kAtOnce], found[kAtOnce];
                bool is_plain = true;
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    z[i] = gate(first, i);
                    found[i] = first + i < tokens ? decay(first, i) : float2{};
                    is_plain &= gate_gradient.is_plain(z[i].x) && gate_gradient.is_plain(z[i].y);
                }
                const auto pass = [&]<bool kPlain>() {
#pragma unroll
                    for (int i = 0; i < kAtOnce; ++i) {
                        found[i].x = gate_gradient.template gradient_of<kPlain>(z[i].x, found[i].x, sums.A_log.x);
                        found[i].y = gate_gradient.template gradient_of<kPlain>(z[i].y, found[i].y, sums.A_log.y);
                    }
                };
                if (is_plain) [[likely]]
                    pass.template operator()<true>();
                else
                    pass.template operator()<false>();
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i, at += step) {
                    sums.dt_bias = {sums.dt_bias.x + found[i].x, sums.dt_bias.y + found[i].y};
                    if (first + i < tokens) *at = rounded(found[i]);
                }
            }
        };
        step /= 2;
        if (type == DType::f32)
            store(reinterpret_cast<float2*>(to), [](float2 x) { return x; });
        else if (type == DType::bf16)
            store(reinterpret_cast<unsigned*>(to), [](float2 x) { return pack<DType::bf16>(x.x, x.y); });
        else
            store(reinterpret_cast<unsigned*>(to),
                  [](float2 x) {  // not saturated
                      const __half2 both = __floats2half2_rn(x.x, x.y);
                      return *reinterpret_cast<const unsigned*>(&both);
                  });
    });
    return sums;
}

}  // namespace gdn_cuda::gdn
