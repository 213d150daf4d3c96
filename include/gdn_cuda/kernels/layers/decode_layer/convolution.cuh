// layers/decode_layer's convolution of a block's channels: from the projections to query, key and value in shared memory, and
// the convolution's state after the tokens.
#pragma once

#include <gdn_cuda/kernels/common/block_group.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/layers/decode_layer/tokens.cuh>

namespace gdn_cuda::layers {

// The value heads of a block (first_head, first_head + args.heads_at_once, ...) and the quarters of their rows that it
// computes.
struct LayerPart {
    int first_head, part;
    int quarter_rows, quarters;
    int head_row, rows;  // the block's rows of a head

    __device__ __forceinline__ LayerPart(const DecodeLayerArgs& args, int rank)
        : first_head(rank >> args.parts_log2),
          part(rank & (args.parts() - 1)),
          quarter_rows((args.dv + 4 * kRowQuarters - 1) / (4 * kRowQuarters) * 4),
          quarters(kRowQuarters >> args.parts_log2),
          head_row(min(part * quarters * quarter_rows, args.dv)),
          rows(min(quarters * quarter_rows, args.dv - head_row)) {}

    __device__ __forceinline__ int quarters_log2() const { return quarters >> 1; }
    __device__ __forceinline__ int rows_of_quarter(int quarter) const {
        return max(min(quarter_rows, rows - quarter * quarter_rows), 0);
    }
};

// The taps of four channels, in flight, of dtype `io` and contiguous along taps.
template <DecodeLayerConfig kConfig, bool kChannelGates = kConfig.channel_gates>
struct FourTaps {
    uint4 words[2];

    __device__ __forceinline__ void load(const LayerChannels<kConfig>& channels, int, int index) {
        const auto* from = static_cast<const uint4*>(channels.args.weight.data) + index / 2;
        words[0] = from[0], words[1] = from[1];
    }
    // tap[j][k]: tap k of channel j.
    __device__ __forceinline__ void unpack_taps(const DecodeLayerArgs&, float (&tap)[4][kLayerTaps]) const {
        const unsigned flat[8] = {words[0].x, words[0].y, words[0].z, words[0].w,
                                  words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float2 early = unpack<kConfig.io>(flat[2 * j]), late = unpack<kConfig.io>(flat[2 * j + 1]);
            tap[j][0] = early.x, tap[j][1] = early.y, tap[j][2] = late.x, tap[j][3] = late.y;
        }
    }
};
// The same with gates of channels: of dtype `io` or fp32, contiguous along taps or along channels.
template <DecodeLayerConfig kConfig>
struct FourTaps<kConfig, true> {
    uint4 words[4];

    __device__ __forceinline__ void load(const LayerChannels<kConfig>& channels, int c, int index) {
        const DecodeLayerArgs& args = channels.args;
        const i64 first = channels.first_tap(c, index);
        const bool is_wide = args.weight.type == DType::f32;
        const char* from = static_cast<const char*>(args.weight.data) + (first << (is_wide ? 2 : 1));
        const i64 tap_bytes = static_cast<i64>(args.weight_tap) << (is_wide ? 2 : 1);
        if (!args.weight_by_taps) {
            words[0] = reinterpret_cast<const uint4*>(from)[0], words[1] = reinterpret_cast<const uint4*>(from)[1];
            if (is_wide) words[2] = reinterpret_cast<const uint4*>(from)[2], words[3] = reinterpret_cast<const uint4*>(from)[3];
        } else if (is_wide) {
#pragma unroll
            for (int k = 0; k < kLayerTaps; ++k) words[k] = *reinterpret_cast<const uint4*>(from + k * tap_bytes);
        } else {
#pragma unroll
            for (int k = 0; k < kLayerTaps; ++k) {
                const FourChannels four = *reinterpret_cast<const FourChannels*>(from + k * tap_bytes);
                words[k].x = four.low, words[k].y = four.high;
            }
        }
    }
    __device__ __forceinline__ void unpack_taps(const DecodeLayerArgs& args, float (&tap)[4][kLayerTaps]) const {
        const bool is_wide = args.weight.type == DType::f32, by_taps = args.weight_by_taps;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int k = 0; k < kLayerTaps; ++k) {
                // A word of 16-bit elements has two taps of a channel, or two channels of a tap.
                const float2 along_taps = unpack<kConfig.io>(word(words[j / 2], j % 2 * 2 + k / 2));
                const float2 along_channels = unpack<kConfig.io>(word(words[k], j / 2));
                const float narrow =
                    by_taps ? (j % 2 == 0 ? along_channels.x : along_channels.y) : (k % 2 == 0 ? along_taps.x : along_taps.y);
                tap[j][k] = is_wide ? __uint_as_float(by_taps ? word(words[k], j) : word(words[j], k)) : narrow;
            }
    }

  private:
    __device__ __forceinline__ static unsigned word(const uint4& words, int i) {
        return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
    }
};

// Four channels of one thread: one load for a token's inputs, two for the taps, three for the state, whether the state is
// contiguous along channels or along columns.
template <DecodeLayerConfig kConfig>
struct LayerFourUnit {
    static constexpr int kHistory = kLayerTaps - 1, kAhead = kConfig.tokens < 4 ? kConfig.tokens : 4;
    using Channels = LayerChannels<kConfig>;
    using Output = FourChannels;

    int first_channel;  // index among the channels of all heads
    FourTaps<kConfig> taps;
    FourChannels bias, history[kHistory], x[kAhead];

    __device__ __forceinline__ static FourChannels at(const void* data, i64 channel) {
        return *reinterpret_cast<const FourChannels*>(static_cast<const unsigned short*>(data) + channel);
    }
    __device__ __forceinline__ static void unpack_four(float (&x)[4], const FourChannels& four) {
        const float2 low = unpack<kConfig.io>(four.low), high = unpack<kConfig.io>(four.high);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    }
    // Infinite beyond fp16's range, where `pack` saturates.
    __device__ __forceinline__ static unsigned pack_pair(float x, float y) {
        if constexpr (kConfig.io == DType::bf16)
            return pack<DType::bf16>(x, y);
        else
            return __half_as_ushort(from_float<__half>(x)) | __half_as_ushort(from_float<__half>(y)) << 16;
    }
    __device__ __forceinline__ static FourChannels pack_four(const float (&x)[4]) {
        return {pack_pair(x[0], x[1]), pack_pair(x[2], x[3])};
    }

    __device__ __forceinline__ void load_tokens(const Channels& channels, int c, int first) {
        i64 stride;
        const auto* from = channels.inputs(c, stride);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (kConfig.tokens == 1 || first + i < channels.args.tokens) x[i] = at(from, (first + i) * stride);
    }
    __device__ __forceinline__ void load_inputs(const Channels& channels, int c) {
        first_channel = channels.index(c);
        load_tokens(channels, c, 0);
        taps.load(channels, c, first_channel);
        bias = {};
        if (channels.args.bias.data != nullptr) bias = at(channels.args.bias.data, first_channel);
    }
    // `first`: offset of channel 0's oldest input before the first token.
    __device__ __forceinline__ void load_history(const Channels& channels, int c, const LayerSlots& slots, i64 first) {
        const auto [pool, from] = channels.history(c, first_channel, slots, slots.conv_first, first);
#pragma unroll
        for (int i = 0; i < kHistory; ++i)
            history[i] = at(pool.values.data, from + i * (channels.args.by_columns ? static_cast<i64>(pool.column) : 4));
    }
    // Calls store(t, y) for every token, y rounded as the convolution alone rounds it, and leaves the state after the tokens
    // in `history`.
    template <class Store>
    __device__ __forceinline__ void run(const Channels& channels, int c, const Store& store) {
        const DecodeLayerArgs& args = channels.args;
        float last[kHistory][4], constant[4];
        unpack_histories(last, args.by_columns);
        unpack_four(constant, bias);
        float tap[4][kLayerTaps];
        taps.unpack_taps(args, tap);
#pragma unroll 1
        for (int first = 0; first < (kConfig.tokens == 1 ? 1 : args.tokens); first += kAhead) {
            if (kConfig.tokens > 1 && first > 0) load_tokens(channels, c, first);
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (kConfig.tokens > 1 && first + i >= args.tokens) break;
                float now[4], y[4];
                unpack_four(now, x[i]);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    y[j] = fmaf(tap[j][0], last[0][j], constant[j]);
                    y[j] = fmaf(tap[j][1], last[1][j], y[j]);
                    y[j] = fmaf(tap[j][2], last[2][j], y[j]);
                    y[j] = fmaf(tap[j][3], now[j], y[j]);
                    last[0][j] = last[1][j], last[1][j] = last[2][j], last[2][j] = now[j];
                }
                conv::activate<kConfig.io>(y, args.silu);
                store(first + i, pack_four(y));
            }
        }
        pack_histories(last, args.by_columns);
    }
    __device__ __forceinline__ static void store_floats(float* to, const Output& y) {
        float four[4];
        unpack_four(four, y);
        *reinterpret_cast<float4*>(to) = {four[0], four[1], four[2], four[3]};
    }
    __device__ __forceinline__ void keep(DecodeLayerSharedPlan<kConfig>& shared, int n) const {
#pragma unroll
        for (int i = 0; i < kHistory; ++i) shared.units[n / 4][i] = history[i];
    }
    // `first`: as above.
    __device__ __forceinline__ static void store_kept(const DecodeLayerSharedPlan<kConfig>& shared, const Channels& channels,
                                                      int n, int c, const LayerSlots& slots, i64 first) {
        const auto [pool, from] = channels.history(c, channels.index(c), slots, slots.conv_first, first);
        unsigned short* to = static_cast<unsigned short*>(const_cast<void*>(pool.values.data)) + from;
#pragma unroll
        for (int i = 0; i < kHistory; ++i)
            *reinterpret_cast<FourChannels*>(to + i * (channels.args.by_columns ? static_cast<i64>(pool.column) : 4)) =
                shared.units[n / 4][i];
    }

  private:
    // Input i of channel j is element 4 i + j of the twelve if by_columns, else 3 j + i.
    __device__ __forceinline__ void unpack_histories(float (&last)[kHistory][4], bool by_columns) const {
        float flat[kHistory][4];
#pragma unroll
        for (int i = 0; i < kHistory; ++i) unpack_four(flat[i], history[i]);
#pragma unroll
        for (int i = 0; i < kHistory; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int n = kHistory * j + i;
                last[i][j] = by_columns ? flat[i][j] : flat[n / 4][n % 4];
            }
    }
    __device__ __forceinline__ void pack_histories(const float (&last)[kHistory][4], bool by_columns) {
#pragma unroll
        for (int i = 0; i < kHistory; ++i) {
            float four[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int n = 4 * i + j;
                four[j] = by_columns ? last[i][j] : last[n % kHistory][n / kHistory];
            }
            history[i] = pack_four(four);
        }
    }
};

// The same for one channel, with any dtypes and strides.
template <DecodeLayerConfig kConfig>
struct LayerSingleUnit : LayerChannel<kConfig> {
    using Output = Storage<kConfig.io>;
    float last[kLayerTaps - 1];

    template <class Store>
    __device__ __forceinline__ void run(const LayerChannels<kConfig>& channels, int c, const Store& store) {
        LayerChannel<kConfig>::run(channels, c, last, store);
    }
    __device__ __forceinline__ static void store_floats(float* to, const Output& y) { *to = to_float(y); }
    __device__ __forceinline__ void keep(DecodeLayerSharedPlan<kConfig>& shared, int n) const {
#pragma unroll
        for (int i = 0; i < kLayerTaps - 1; ++i) shared.history[n][i] = last[i];
    }
    __device__ __forceinline__ static void store_kept(const DecodeLayerSharedPlan<kConfig>& shared,
                                                      const LayerChannels<kConfig>& channels, int n, int c,
                                                      const LayerSlots& slots, i64) {
        store_history(channels, c, slots, shared.history[n]);
    }
};
template <DecodeLayerConfig kConfig, bool kPlain>
struct LayerUnitOf {
    using Type = LayerFourUnit<kConfig>;
};
template <DecodeLayerConfig kConfig>
struct LayerUnitOf<kConfig, false> {
    using Type = LayerSingleUnit<kConfig>;
};
template <DecodeLayerConfig kConfig, bool kPlain>
using LayerUnit = typename LayerUnitOf<kConfig, kPlain>::Type;

// The channels of a block: those of query and key if with_pairs, then those of its rows of a value head.
template <DecodeLayerConfig kConfig>
struct LayerConvolution {
    static constexpr int kAtOnce = kConfig.plain ? 4 : 1;  // channels of a thread
    using Io = Storage<kConfig.io>;
    using Unit = LayerUnit<kConfig, kConfig.plain>;

    DecodeLayerSharedPlan<kConfig>& shared;
    const LayerChannels<kConfig>& channels;
    int pairs, rows, first_value;  // counts; index of the value's first channel in the key head
    int n = static_cast<int>(threadIdx.x) * kAtOnce;
    Unit unit;

    __device__ __forceinline__ LayerConvolution(DecodeLayerSharedPlan<kConfig>& shared, const LayerChannels<kConfig>& channels,
                                                const LayerPart& part, int head, bool with_pairs)
        : shared(shared),
          channels(channels),
          pairs(with_pairs ? kConfig.pairs() : 0),
          rows(part.rows),
          first_value(kConfig.pairs() + head * channels.args.dv + part.head_row) {}

    // Offset of channel 0's oldest input before the first token.
    __device__ __forceinline__ static i64 oldest(const DecodeLayerArgs& args, const LayerSlots& slots) {
        return slots.conv * args.conv.slot + slots.conv_first * static_cast<i64>(args.conv.column);
    }
    __device__ __forceinline__ bool exists() const { return n < pairs + rows; }
    __device__ __forceinline__ int channel() const { return n < pairs ? n : first_value + n - pairs; }

    __device__ __forceinline__ void load_inputs() {
        if (exists()) unit.load_inputs(channels, channel());
    }
    __device__ __forceinline__ void load_history(const LayerSlots& slots, i64 first) {
        if (exists()) unit.load_history(channels, channel(), slots, first);
    }
    // Computes the thread's channels; their inputs are already loading, those of further iterations are loaded here.
    __device__ __forceinline__ void run(const LayerSlots& slots, i64 first) {
#pragma unroll 1
        while (exists()) {
            unit.run(channels, channel(), [&](int t, const auto& y) {
                if (n >= pairs)
                    unit.store_floats(&shared.value[t][n - pairs], y);
                else
                    *reinterpret_cast<typename Unit::Output*>(
                        reinterpret_cast<Io*>(n < kConfig.head_k ? shared.query[t].bytes : shared.key[t].bytes) +
                        n % kConfig.head_k) = y;
            });
            unit.keep(shared, n);
            n += kConfig.threads() * kAtOnce;
            load_inputs();
            load_history(slots, first);
        }
    }
    // Stores the convolution's state after the tokens: for the rows of the value head, and for the block's slice of query and
    // key, which no block reads any more.
    __device__ __forceinline__ void store_histories(const BlockGroup& group, const LayerSlots& slots) {
        const int slice = (pairs / kAtOnce + group.size - 1) / group.size * kAtOnce;
#pragma unroll 1
        for (n = static_cast<int>(threadIdx.x) * kAtOnce; exists(); n += kConfig.threads() * kAtOnce)
            if (n >= pairs || (n >= group.rank * slice && n < (group.rank + 1) * slice))
                Unit::store_kept(shared, channels, n, channel(), slots, oldest(channels.args, slots));
    }
};

}  // namespace gdn_cuda::layers
