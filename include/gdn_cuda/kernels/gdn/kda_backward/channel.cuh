// A thread's channel of the key over a chunk's 16 tokens: its elements of keys and queries, its decays, and products of decays
// between two tokens.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/plan.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

// False where the index is unused.
__device__ __forceinline__ bool find_kda_place(const GdnCall& call, i64 index, KdaPlace& place) {
    const ChunkPlace found = chunk_at(call.cu_seqlens, call.sequences, call.tokens, index, kKdaTokens);
    if (found.sequence < 0) return false;
    place = {.sequence = call.cu_seqlens.data != nullptr ? 0 : found.sequence,
             .first = found.start + found.first,
             .tokens = min(kKdaTokens, found.length - found.first)};
    return true;
}

struct KdaChannel {
    float key[kKdaTokens], query[kKdaTokens], decay[kKdaTokens];  // past the end 0, 0 and 1
    int channel;
    bool exists;

    __device__ __forceinline__ explicit KdaChannel(const GdnCall& call)
        : channel(opaque(static_cast<int>(threadIdx.x))), exists(channel < call.dk) {}

    template <class Io>
    __device__ __forceinline__ void load_rows(float (&to)[kKdaTokens], const Rows& rows, const KdaPlace& place,
                                              i64 head) const {
        const Io* from = static_cast<const Io*>(rows.data) + place.sequence * rows.batch + place.first * rows.token +
                         head * rows.head + channel;
        // Multiples of the stride, and comparisons, would be formed before a loop over heads, and spill.
        const i64 step = opaque(rows.token);
        const int tokens = opaque(place.tokens);
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) to[i] = exists && i < tokens ? to_float(from[i * step]) : 0.f;
    }
    __device__ __forceinline__ static float rate_log_of(const GdnCall& call, i64 head) {
        return call.A_log.data == nullptr ? 0.f : load_float(call.A_log, head);
    }
    // Calls visit(token, gate, or raw gate and bias) for the tokens that exist.
    template <class Visit>
    __device__ __forceinline__ void load_gates(const GdnCall& call, const KdaPlace& place, i64 head, Visit&& visit) const {
        const i64 first = scalar_offset(call.gate, place.sequence, place.first, head) + channel * call.channels.channel,
                  step = opaque(call.gate.token);
        const int tokens = opaque(place.tokens);
        unsigned raw[kKdaTokens];
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) raw[i] = exists && i < tokens ? load_raw(call.gate.values, first + i * step) : 0u;
        const float bias =
            exists && call.dt_bias.data != nullptr ? load_float(call.dt_bias, head * call.channels.bias_head + channel) : 0.f;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i)
            if (exists && i < tokens) visit(i, to_float(raw[i], call.gate.values.type) + bias);
    }
    __device__ __forceinline__ void load_decays(const GdnCall& call, const KdaPlace& place, i64 head) {
#pragma unroll
        for (float& each : decay) each = 1.f;
        with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() {
            const ChannelDecay<kForm> decay_of(rate_log_of(call, head), call.channels.lower_bound);
            load_gates(call, place, head, [&](int i, float z) { decay[i] = decay_of(z); });
        });
    }
};

// Decays about the border between the halves of a group of 2 * kHalf tokens: to a token of the upper half, its own among them,
// and from a token of the lower half, without its own. All are products of at most kHalf decays, and at most 1.
template <int kHalf>
struct KdaGroup {
    float forwards[kHalf], backwards[kHalf];

    __device__ __forceinline__ KdaGroup(const float (&decay)[kKdaTokens], int first) {
        float product = 1.f;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) forwards[i] = product *= decay[first + kHalf + i];
        product = 1.f;
#pragma unroll
        for (int j = kHalf - 1; j >= 0; --j) {
            backwards[j] = product;
            product *= decay[first + j];
        }
    }
};

// Sums of 2 * kWidth values over groups of as many lanes: lane i has that of value i.
template <int kWidth>
__device__ __forceinline__ float transposed_sum(const float (&values)[2 * kWidth]) {
    const bool upper = (threadIdx.x & kWidth) != 0;
    float sums[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
        const float kept = upper ? values[i + kWidth] : values[i], given = upper ? values[i] : values[i + kWidth];
        sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, kWidth);
    }
    if constexpr (kWidth > 1)
        return transposed_sum<kWidth / 2>(sums);
    else
        return sums[0];
}

}  // namespace gdn_cuda::gdn
