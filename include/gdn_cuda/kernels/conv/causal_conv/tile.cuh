// Tiles of tokens and channels in shared memory, shared by conv/causal_conv_tile and conv/causal_conv_backward.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/tile_plan.cuh>

namespace gdn_cuda::conv {

// A block's tile. Consecutive blocks read adjacent memory.
struct CausalTilePlace {
    int batch, channel, token;

    __device__ __forceinline__ CausalTilePlace(int channels, int tokens, bool channels_last, int tile_channels,
                                               int tile_tokens) {
        const int groups = static_cast<int>(ceil_div(channels, tile_channels)),
                  tiles = static_cast<int>(ceil_div(tokens, tile_tokens));
        const int block = static_cast<int>(blockIdx.x), in_row = block % (groups * tiles);
        batch = block / (groups * tiles);
        channel = (channels_last ? in_row % groups : in_row / tiles) * tile_channels;
        token = (channels_last ? in_row / groups : in_row % tiles) * tile_tokens;
    }
};

template <int kThreads, int kReach, int kChannels>
__device__ __forceinline__ void load_taps(const CausalArgs& args, int first, float (&weight)[kReach][kChannels],
                                          float (&bias)[kChannels]) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int i = thread; i < args.taps * kChannels; i += kThreads) {
        const int k = i % args.taps, channel = i / args.taps;
        const bool exists = first + channel < args.channels;
        weight[k][channel] =
            exists ? load_float(args.weight, (first + channel) * args.weight_channel + k * args.weight_tap) : 0.f;
    }
#pragma unroll 1
    for (int i = thread; i < kChannels; i += kThreads) {
        const bool exists = args.bias.data != nullptr && first + i < args.channels;
        bias[i] = exists ? load_float(args.bias, (first + i) * args.bias_channel) : 0.f;
    }
}

// Loads the tile's tokens and `before` tokens before them; zeros outside of the row. `vectors`: rows are whole aligned
// 16-byte vectors.
template <class T, bool kChannelsLast, int kThreads, int kChannels, int kTokens>
__device__ __forceinline__ void load_inputs(const CausalTensor& from, bool vectors, const CausalTilePlace& place, int channels,
                                            int tokens, int before, CausalInputs<kChannelsLast, kChannels, kTokens>& to) {
    using Inputs = CausalInputs<kChannelsLast, kChannels, kTokens>;
    constexpr int kVector = 16 / int(sizeof(T)), kAcross = (kChannelsLast ? kChannels : kTokens) / kVector;
    static_assert((kChannelsLast ? kChannels : kTokens) % kVector == 0);
    const T* const data = static_cast<const T*>(from.data) + place.batch * from.batch;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kChannels * kTokens / kVector; i += kThreads) {
        const int across = i % kAcross * kVector, along = i / kAcross;
        const int in_channel = kChannelsLast ? across : along, in_token = kChannelsLast ? along : across;
        const int channel = place.channel + in_channel, token = place.token - before + in_token;
        Vector<T, kVector, true> items;
        items.clear();
        const T* const at = data + channel * from.channel + token * from.token;
        if (vectors) {
            // `before`, the tile and the rows are whole vectors, so a vector is either inside or outside.
            if (channel < channels && token >= 0 && token < tokens) items.load(at);
        } else {
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                const int c = channel + (kChannelsLast ? e : 0), t = token + (kChannelsLast ? 0 : e);
                if (c < channels && t >= 0 && t < tokens) items.items[e] = at[e * (kChannelsLast ? from.channel : from.token)];
            }
        }
#pragma unroll
        for (int e = 0; e < kVector; ++e)
            to.at[kChannelsLast ? Inputs::place(in_channel + e, in_token) : Inputs::place(in_channel, in_token + e)] = items[e];
    }
}

// Fills `ids` for the tokens from `origin` on (-1 outside of the row). Returns to all threads, after a barrier, whether the
// tile is mixed: a token of it sees a state, or not all tokens that its tokens see are of one sequence.
template <int kThreads, int kCount>
__device__ __forceinline__ bool load_ids(const CausalSequences& sequences, int origin, int taps, int reach, int tokens,
                                         i64 (&ids)[kCount]) {
    const bool at_state = origin + reach - (taps - 1) < 0 && sequences.has_states();
    const bool plain = !sequences.varies() && sequences.args.slots.data == nullptr;
    if (plain && !at_state) {
        __syncthreads();
        return false;
    }
    const int first = max(origin + reach - (taps - 1), 0);  // the first token that the tile sees
    const i64 wanted = sequences.id_of(min(first, tokens - 1));
    bool mixed = at_state || wanted < 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kCount; i += kThreads) {
        const int token = origin + i;
        const i64 id = token < 0 || token >= tokens ? kNoSequence : sequences.id_of(token);
        ids[i] = id;
        if (token >= first && token < tokens && id != wanted) mixed = true;
    }
    return __syncthreads_or(mixed) != 0;
}

// z[i] = bias + sum over k of weight(k) input(first + i + k), in the order of k.
template <int kRun>
__device__ __forceinline__ void causal_sums(float (&z)[kRun], float bias, int taps, int first, const auto& weight,
                                            const auto& input) {
    float window[kRun];
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
        z[i] = bias;
        window[i] = input(first + i);
    }
#pragma unroll 1
    for (int k = 0; k < taps; k += kRun) {
#pragma unroll
        for (int u = 0; u < kRun; ++u) {
            if (k + u >= taps) break;
            const float tap = weight(k + u);
#pragma unroll
            for (int i = 0; i < kRun; ++i) z[i] = fmaf(tap, window[(i + u) % kRun], z[i]);
            window[u] = input(first + k + u + kRun);  // the slot of the oldest input is free
        }
    }
}

template <class T>
__device__ __forceinline__ void store_one(const CausalTensor& to, const CausalTilePlace& place, int channel, int token,
                                          float y) {
    T* const at = static_cast<T*>(to.data) + place.batch * to.batch + (place.channel + channel) * to.channel +
                  static_cast<i64>(place.token + token) * to.token;
    *at = from_float<T>(y);
}

// Stores contiguous tokens of a channel.
template <bool kChannelsLast, class T, int kRun>
__device__ __forceinline__ void store_run(const CausalTensor& to, bool vectors, const CausalTilePlace& place, int channel,
                                          int first, int tokens, const float (&y)[kRun]) {
    T* const at = static_cast<T*>(to.data) + place.batch * to.batch + (place.channel + channel) * to.channel +
                  static_cast<i64>(place.token + first) * to.token;
    const int left = tokens - (place.token + first);
    if (!kChannelsLast && vectors && left >= kRun) {
        constexpr int kVector = 16 / int(sizeof(T));
        Vector<T, kRun, true> items;
#pragma unroll
        for (int i = 0; i < kRun; ++i) items.set(i, y[i]);
        static_assert(kRun % kVector == 0);
#pragma unroll
        for (int i = 0; i < kRun; i += kVector) reinterpret_cast<const Raw<16>*>(items.items + i)->store(at + i);
    } else {
#pragma unroll
        for (int i = 0; i < kRun; ++i)
            if (i < left) at[i * to.token] = from_float<T>(y[i]);
    }
}

}  // namespace gdn_cuda::conv
