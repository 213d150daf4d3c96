// Loads of a head's gates where every channel of the key has one, and their decays in shared memory. A block's threads take
// the channels in turn, so that special functions are computed once for all rows of the state.
#pragma once

#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

// The gates of kTokens tokens, unconverted. Kernels load them early, and convert them once loads of the state are in flight.
template <int kChannels, int kThreads, int kTokens>
struct ChannelLoads {
    static constexpr int kEach = static_cast<int>(ceil_div(kChannels, kThreads));  // channels of a thread
    unsigned gate[kTokens][kEach], dt_bias[kEach], A_log;
    int channels;  // of the tensors; those up to kChannels have decays of 0

    __device__ __forceinline__ explicit ChannelLoads(int channels = kChannels) : channels(channels) {}

    // Issues the loads of tokens [first, first + kTokens), or up to the last of `tokens`. gate_at(t): the offset of a token's
    // first channel.
    template <class Args, class Offset>
    __device__ __forceinline__ void load(const Args& args, int head, int first, int tokens, Offset&& gate_at) {
        A_log = args.A_log.data == nullptr ? 0u : load_raw(args.A_log, head);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int c = channel(i) < channels ? channel(i) : 0;
            dt_bias[i] = args.dt_bias.data == nullptr ? 0u : load_raw(args.dt_bias, head * args.channels.bias_head + c);
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
                gate[t][i] = load_raw(args.gate.values, gate_at(min(first + t, tokens - 1)) + c * args.channels.channel);
        }
    }

    // Stores the decays of all tokens, those of token t at decays_of(t); the first are loaded. Returns whether one is 0.
    template <class Args, class Offset, class Decays>
    __device__ __forceinline__ bool finish(const Args& args, int head, int tokens, Offset&& gate_at, Decays&& decays_of) {
        bool any_reset = false;
#pragma unroll 1
        for (int first = 0;;) {
            any_reset |= store(args, tokens - first, [&](int t) { return decays_of(first + t); });
            first += kTokens;
            if (first >= tokens) return any_reset;
            load(args, head, first, tokens, gate_at);
        }
    }

  private:
    template <class Args, class Decays>
    __device__ __forceinline__ bool store(const Args& args, int count, Decays&& decays_of) const {
        bool any_reset = false;
        with_channel_gate(args.channels.form, [&]<ChannelGate kForm>() {
            const ChannelDecay<kForm> decay(to_float(A_log, args.A_log.type), args.channels.lower_bound);
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                const float bias = to_float(dt_bias[i], args.dt_bias.type);
#pragma unroll
                for (int t = 0; t < kTokens; ++t) {
                    if (t >= count || (kChannels % kThreads != 0 && channel(i) >= kChannels)) continue;
                    float each = decay(to_float(gate[t][i], args.gate.values.type) + bias);
                    any_reset = any_reset || (each == 0.f && channel(i) < channels);
                    if (channel(i) >= channels) each = 0.f;  // clears NaN, which infinity times a key of 0 has left
                    decays_of(t)[channel(i)] = each;
                }
            }
        });
        return any_reset;
    }
    __device__ __forceinline__ static int channel(int i) { return static_cast<int>(threadIdx.x) + i * kThreads; }
};

}  // namespace gdn_cuda::gdn
