// A thread's channel of the key over a chunk's 16 tokens: its elements of keys and queries, its decays, and products of decays
// between two tokens.
#pragma once

#include <gdn_cuda/kernels/common/cp_async.cuh>
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

// load_float, but two registers: one that only one of two loads writes would be live from the kernel's start.
__device__ __forceinline__ float load_alone(const Tagged& from, i64 at) {
    RawElement element;
    element.load(from, at);
    return element.to_float(from.type);
}

// Copies a head's rows of a chunk, without a wait.
template <int kThreads, int kHeadK>
__device__ __forceinline__ void copy_kda_rows(unsigned short (&to)[kKdaTokens][kHeadK], const Rows& rows, const KdaPlace& place,
                                              i64 head, int dk) {
    constexpr int kVectors = kHeadK / 8, kBytes = 2;
    const char* const from = static_cast<const char*>(rows.data) +
                             (place.sequence * rows.batch + place.first * rows.token + head * rows.head) * kBytes;
#pragma unroll
    for (int i = 0; i < kKdaTokens; i += kThreads / kVectors) {
        const int token = i + threadIdx.x / kVectors, column = threadIdx.x % kVectors * 8;
        const bool exists = token < place.tokens && column < dk;
        cp_async_16_zfill(shared_address(&to[token][column]), from + (exists ? (token * rows.token + column) * kBytes : i64{0}),
                          exists);
    }
}

// The gates of a thread's channel, or raw gates and their bias: all loads in flight together.
struct KdaGates {
    unsigned bits[kKdaTokens];
    float bias;
    DType type;

    // `tokens`: of this channel, 0 if it does not exist.
    __device__ __forceinline__ KdaGates(const GdnCall& call, const KdaPlace& place, int tokens, i64 head, int channel)
        : bias(0.f), type(call.gate.values.type) {
        const i64 first = scalar_offset(call.gate, place.sequence, place.first, head) + channel * call.channels.channel;
        // One branch on the dtype for all: loads of both sizes into one register would wait for each other.
        if (type == DType::f32)
            load(static_cast<const unsigned*>(call.gate.values.data) + first, call.gate.token, tokens);
        else
            load(static_cast<const unsigned short*>(call.gate.values.data) + first, call.gate.token, tokens);
        if (tokens > 0 && call.dt_bias.data != nullptr)
            bias = load_alone(call.dt_bias, head * call.channels.bias_head + channel);
    }
    // With the bias. Opaque: each form of gates would convert them anew, all ahead of the branch on the form.
    __device__ __forceinline__ void convert(float (&to)[kKdaTokens]) const {
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) to[i] = opaque(to_float_by_shift(bits[i], type) + bias);
    }

  private:
    template <class Bits>
    __device__ __forceinline__ void load(const Bits* from, i64 step, int tokens) {
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i, from += step) bits[i] = i < tokens ? *from : 0u;
    }
};

struct KdaChannel {
    float key[kKdaTokens], query[kKdaTokens], decay[kKdaTokens];  // past the end 0, 0 and 1
    int channel;
    bool exists;

    __device__ __forceinline__ explicit KdaChannel(const GdnCall& call)
        : KdaChannel(call, opaque(static_cast<int>(threadIdx.x))) {}
    __device__ __forceinline__ KdaChannel(const GdnCall& call, int channel) : channel(channel), exists(channel < call.dk) {}

    __device__ __forceinline__ int tokens_of(const KdaPlace& place) const { return exists ? place.tokens : 0; }
    __device__ __forceinline__ static float rate_log_of(const GdnCall& call, i64 head) {
        return call.A_log.data == nullptr ? 0.f : load_alone(call.A_log, head);
    }
    __device__ __forceinline__ void find_decays(const GdnCall& call, const float (&gates)[kKdaTokens], int tokens,
                                                float rate_log) {
        const auto find = [&]<ChannelGate kForm>() {
            const ChannelDecay<kForm> decay_of(rate_log, call.channels.lower_bound);
            const auto find_each = [&](auto&& of) {
#pragma unroll
                for (int i = 0; i < kKdaTokens; ++i) {
                    const float found = opaque(of(gates[i]));  // not a branch for each
                    decay[i] = i < tokens ? found : 1.f;
                }
            };
            if (kForm == ChannelGate::softplus && decay_of.rate_log <= ChannelDecay<kForm>::kLargestPlainRateLog)
                find_each([&](float gate) { return exp2_fast(decay_of.rate * channel_softplus(gate)); });
            else
                find_each(decay_of);
        };
        // Not with_channel_gate: where branches of a switch meet, some of the decays would spill.
        const ChannelGate form = call.channels.form;
        if (form == ChannelGate::softplus)
            find.template operator()<ChannelGate::softplus>();
        else if (form == ChannelGate::bounded)
            find.template operator()<ChannelGate::bounded>();
        else if (form == ChannelGate::log_decay)
            find.template operator()<ChannelGate::log_decay>();
        else
            find.template operator()<ChannelGate::decay>();
    }
};

// Decays about the border between the halves of a group of 2 * kHalf tokens: to a token of the upper half, its own among them,
// and from a token of the lower half, without its own. All are products of at most kHalf decays, and at most 1.
template <int kHalf>
struct KdaGroup {
    float forwards[kHalf], backwards[kHalf];

    template <int kTokens>
    __device__ __forceinline__ KdaGroup(const float (&decay)[kTokens], int first) {
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
