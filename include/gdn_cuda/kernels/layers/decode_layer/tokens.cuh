// layers/decode_layer before the recurrence: a sequence's slots, the convolution's channels, gates, and gains of the norm.
#pragma once

#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>
#include <gdn_cuda/kernels/layers/decode_layer/plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_row.cuh>

namespace gdn_cuda::layers {

// Slots of the recurrence's state and of the convolution's state, which verify keeps in the first slot of a sequence.
struct LayerSlots {
    i64 state, conv;
    int conv_first;  // column of the oldest of the three inputs before the first token

    __device__ __forceinline__ void load(const DecodeLayerArgs& args, int sequence) {
        state = conv = sequence;
        conv_first = args.conv_columns - (kLayerTaps - 1);
        if (args.slots.data == nullptr) return;
        state = conv = load_index(args.slots, sequence * args.slots_sequence);
        if (!args.by_token) return;
        conv_first = 0;
        if (args.accepted.data == nullptr) return;
        const i64 accepted = max(load_index(args.accepted, sequence), i64{1}) - 1;
        state = load_index(args.slots, sequence * args.slots_sequence +
                                           min(accepted, static_cast<i64>(args.slot_steps) - 1) * args.slots_token);
        conv_first = static_cast<int>(min(accepted, static_cast<i64>(args.conv_columns - (kLayerTaps - 1))));
    }
    __device__ __forceinline__ Place place(const DecodeLayerArgs& args) const {
        const Place state_place = place_of(args, state), conv_place = place_of(args, conv);
        if (state_place == Place::skip || conv_place == Place::skip) return Place::skip;
        return state_place == Place::poison ? state_place : conv_place;
    }
};

// Offset in `state_out` of the state after token t; negative: it is not stored.
__device__ __forceinline__ i64 target_of_token(const DecodeLayerArgs& args, int sequence, i64 slot, int t) {
    if (args.step_slots.data != nullptr) {
        const i64 row = load_index(args.step_slots, sequence);
        return row < 0 || row >= args.step_slot_count ? -1 : row * args.out_slot + t * args.out_step;
    }
    if (!args.by_token) return t + 1 == args.tokens ? slot * args.out_slot : -1;
    const i64 token_slot = load_index(args.slots, sequence * args.slots_sequence + t * args.slots_token);
    return place_of(args, token_slot) == Place::run ? token_slot * args.out_slot : -1;
}

// A channel's convolution state: its pool, and the offset of one of its columns there.
struct LayerHistory {
    DecodeLayerArgs::ConvStates pool;
    i64 at;
};

// The channels of a key head: query, key, then the rows of its value heads.
template <DecodeLayerConfig kConfig>
struct LayerChannels {
    using Io = Storage<kConfig.io>;

    const DecodeLayerArgs& args;
    int sequence, key_head;
    const Io *query, *key, *value;  // the first token's

    __device__ __forceinline__ LayerChannels(const DecodeLayerArgs& args, int sequence, int key_head)
        : args(args),
          sequence(sequence),
          key_head(key_head),
          query(row(args.query)),
          key(row(args.key)),
          value(row(args.value)) {
        // Otherwise the compiler recomputes these addresses at each use.
        asm volatile("" : "+l"(query), "+l"(key), "+l"(value));
    }

    __device__ __forceinline__ const Io* row(const Rows& rows) const {
        return static_cast<const Io*>(rows.data) + sequence * rows.batch + key_head * rows.head;
    }
    // Index of channel c among the channels of all heads.
    __device__ __forceinline__ int index(int c) const {
        const int head_start = key_head * kConfig.head_k, all_keys = args.key_heads * kConfig.head_k;
        if (c < kConfig.head_k) return head_start + c;
        if (c < kConfig.pairs()) return all_keys + head_start + (c - kConfig.head_k);
        return 2 * all_keys + key_head * args.heads_per_key * args.dv + (c - kConfig.pairs());
    }
    // 0 for channels of query, 1 for those of key, 2 for those of value.
    __device__ __forceinline__ static int part_of(int c) { return c < kConfig.head_k ? 0 : c < kConfig.pairs() ? 1 : 2; }
    __device__ __forceinline__ int in_part(int part, int index) const {
        return index - part * (args.key_heads * kConfig.head_k);
    }
    // Offset of the first tap of channel c, of index `index`.
    __device__ __forceinline__ i64 first_tap(int c, int index) const {
        if constexpr (!kConfig.channel_gates) return index * args.weight_channel;
        const int part = part_of(c);
        return part * args.weight_part + in_part(part, index) * args.weight_channel;
    }
    // Column `column` of channel c, of index `index`. `first`: the offset of that column of channel 0.
    __device__ __forceinline__ LayerHistory history(int c, int index, const LayerSlots& slots, int column, i64 first) const {
        if constexpr (!kConfig.channel_gates) {
            return {args.conv, first + index * args.conv.channel};
        } else {
            const int part = part_of(c);
            DecodeLayerArgs::ConvStates pool = args.conv;
            if (part > 0) pool = part == 1 ? args.conv_key : args.conv_value;
            return {pool,
                    slots.conv * pool.slot + in_part(part, index) * pool.channel + column * static_cast<i64>(pool.column)};
        }
    }
    __device__ __forceinline__ const Io* inputs(int c, i64& token_stride) const {
        const bool is_query = c < kConfig.head_k, is_key = c < kConfig.pairs();
        token_stride = is_query ? args.query.token : is_key ? args.key.token : args.value.token;
        return (is_query ? query : is_key ? key : value) + (c - (is_query ? 0 : is_key ? kConfig.head_k : kConfig.pairs()));
    }
};

// One channel of the convolution.
template <DecodeLayerConfig kConfig>
struct LayerChannel {
    using Io = Storage<kConfig.io>;
    using Channels = LayerChannels<kConfig>;
    static constexpr int kHistory = kLayerTaps - 1, kAhead = kConfig.tokens < 4 ? kConfig.tokens : 4;

    int channel_index;  // index among the channels of all heads
    RawElements<kLayerTaps> taps;
    RawElements<kHistory> history;
    RawElements<1> bias;
    Io x[kAhead];

    __device__ __forceinline__ void load_tokens(const Channels& channels, int c, int first) {
        i64 stride;
        const Io* from = channels.inputs(c, stride);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (kConfig.tokens == 1 || first + i < channels.args.tokens) x[i] = from[(first + i) * stride];
    }
    // Loads that do not depend on a slot.
    __device__ __forceinline__ void load_inputs(const Channels& channels, int c) {
        const DecodeLayerArgs& args = channels.args;
        channel_index = channels.index(c);
        load_tokens(channels, c, 0);
        i64 first_tap = channels.first_tap(c, channel_index);
        if constexpr (kConfig.channel_gates) first_tap -= args.missing_taps * static_cast<i64>(args.weight_tap);
        load_present(args, taps, args.weight, first_tap, args.weight_tap);
        if (args.bias.data != nullptr) bias.load(args.bias, channel_index * args.bias_channel, 0);
    }
    // `first`: offset of channel 0's oldest input before the first token.
    __device__ __forceinline__ void load_history(const Channels& channels, int c, const LayerSlots& slots, i64 first) {
        const auto [pool, at] = channels.history(c, channel_index, slots, slots.conv_first, first);
        load_present(channels.args, history, pool.values, at, pool.column);
    }
    // Calls store(t, y) with the output of every token, rounded to `Io` as the convolution alone rounds it. `last`: the inputs
    // before the next token.
    template <class Store>
    __device__ __forceinline__ void run(const Channels& channels, int c, float (&last)[kHistory], const Store& store) {
        const DecodeLayerArgs& args = channels.args;
        float tap[kLayerTaps];
#pragma unroll
        for (int i = 0; i < kHistory; ++i) last[i] = history.to_float(i, args.conv.values.type);
#pragma unroll
        for (int k = 0; k < kLayerTaps; ++k) tap[k] = taps.to_float(k, args.weight.type);
        const float constant = args.bias.data == nullptr ? 0.f : bias.to_float(0, args.bias.type);
#pragma unroll 1
        for (int first = 0; first < (kConfig.tokens == 1 ? 1 : args.tokens); first += kAhead) {
            if (kConfig.tokens > 1 && first > 0) load_tokens(channels, c, first);
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (kConfig.tokens > 1 && first + i >= args.tokens) break;
                const float now = to_float(x[i]);
                float y[1] = {constant};
#pragma unroll
                for (int k = 0; k < kHistory; ++k) y[0] = fmaf(tap[k], last[k], y[0]);
                y[0] = fmaf(tap[kHistory], now, y[0]);
                conv::activate<kConfig.io>(y, args.silu);
                store(first + i, from_float<Io>(y[0]));
#pragma unroll
                for (int k = 0; k + 1 < kHistory; ++k) last[k] = last[k + 1];
                last[kHistory - 1] = now;
            }
        }
    }

  private:
    // `at`: the offset of the first of four taps or three inputs. Those that the convolution lacks are 0.
    template <int kCount>
    __device__ __forceinline__ static void load_present(const DecodeLayerArgs& args, RawElements<kCount>& elements,
                                                        const Tagged& from, i64 at, int stride) {
        if constexpr (!kConfig.channel_gates) {
            elements.load(from, at, stride);
        } else {
#pragma unroll
            for (unsigned& bits : elements.bits) bits = 0;
            elements.load(
                from, [&](int i) { return at + i * static_cast<i64>(stride); }, [&](int i) { return i >= args.missing_taps; });
        }
    }
};

// Whether a channel's state consists of just the three inputs before the next token.
__device__ __forceinline__ bool keeps_last_inputs(const DecodeLayerArgs& args) {
    return args.step_conv.values.data == nullptr && !args.by_token && args.conv_columns == kLayerTaps - 1;
}

// Input i of a channel: first the `columns` columns of its state from `history` on, then the tokens.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ float channel_input(const LayerChannels<kConfig>& channels, int c, const LayerHistory& history,
                                               int columns, int i) {
    const auto& [pool, at] = history;
    if (i < columns) return load_float(pool.values, at + i * static_cast<i64>(pool.column));
    i64 stride;
    const auto* from = channels.inputs(c, stride);
    return to_float(from[(i - columns) * stride]);
}

// Writes one channel's convolution state after the tokens. No other thread reads that state any more.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void store_history(const LayerChannels<kConfig>& channels, int c, const LayerSlots& slots,
                                              const float (&last)[kLayerTaps - 1]) {
    constexpr int kHistory = kLayerTaps - 1;
    const DecodeLayerArgs& args = channels.args;
    const int channel = channels.index(c);
    const LayerHistory history = channels.history(c, channel, slots, 0, slots.conv * args.conv.slot);
    const auto store = [&](int column, float x) {
        store_float(history.pool.values, history.at + column * static_cast<i64>(history.pool.column), x);
    };
    const auto from_column = [&](int column) {
        return LayerHistory{history.pool, history.at + column * static_cast<i64>(history.pool.column)};
    };
    if (keeps_last_inputs(args) && !(kConfig.channel_gates && args.missing_taps > 0)) {
#pragma unroll
        for (int i = 0; i < kHistory; ++i) store(i, last[i]);
        return;
    }
    if (args.step_conv.values.data != nullptr) {
        const i64 step_row = load_index(args.step_slots, channels.sequence);
        if (step_row < 0 || step_row >= args.step_slot_count) return;
        const DecodeLayerArgs::ConvStates& to = args.step_conv;
        const LayerHistory before = from_column(slots.conv_first);
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
#pragma unroll 1
            for (int i = 0; i < kHistory; ++i)
                store_float(const_cast<void*>(to.values.data), to.values.type,
                            step_row * to.slot + t * to.step + channel * to.channel + i * static_cast<i64>(to.column),
                            channel_input(channels, c, before, kHistory, t + 1 + i));
        return;
    }
    // Verify keeps all but the first of the inputs before the tokens, and all tokens; otherwise the last inputs are kept.
    // Columns move to lower indices, so each is read before it is overwritten.
    const int columns = args.by_token ? kHistory : args.conv_columns;
    const int shift = args.by_token ? 1 : args.tokens;
    const int count = args.by_token ? kHistory - 1 + args.tokens : args.conv_columns;
    const LayerHistory from = args.by_token ? from_column(slots.conv_first) : history;
#pragma unroll 1
    for (int i = 0; i < count; ++i) store(i, channel_input(channels, c, from, columns, i + shift));
}

// The gates of one token and value head.
__device__ __forceinline__ LayerGate layer_gate(const DecodeLayerArgs& args, int sequence, int t, int key_head, int head) {
    const auto at = [&](const DecodeLayerArgs::Gates& of) {
        return sequence * of.batch + t * of.token + key_head * of.key_head + head * of.head;
    };
    const i64 value_head = static_cast<i64>(key_head) * args.heads_per_key + head;
    RawElements<1> a, b, A_log, dt_bias;
    a.load(args.a.values, at(args.a), 0);
    b.load(args.b.values, at(args.b), 0);
    A_log.load(args.A_log, value_head, 0);
    dt_bias.load(args.dt_bias, value_head, 0);
    const float x = a.to_float(0, args.a.values.type) + dt_bias.to_float(0, args.dt_bias.type);
    return {expf(log_decay(A_log.to_float(0, args.A_log.type), x)),
            args.beta_scale * sigmoid(b.to_float(0, args.b.values.type))};
}

// Beta alone: decays are those of channels.
__device__ __forceinline__ float layer_beta(const DecodeLayerArgs& args, int sequence, int key_head, int head) {
    return args.beta_scale *
           sigmoid(load_float(args.b.values, sequence * args.b.batch + key_head * args.b.key_head + head * args.b.head));
}

// Gain of row `row` of a head: norm weight times the activated gate. `gate`: the row's z.
__device__ __forceinline__ float layer_gain(const DecodeLayerArgs& args, float gate, int row) {
    RawElements<1> weight;
    weight.load(args.norm_weight, row * args.norm_weight_row, 0);
    const float s = silu_gate(gate);
    return weight.to_float(0, args.norm_weight.type) * (args.sigmoid_gate ? s : gate * s);
}

}  // namespace gdn_cuda::layers
