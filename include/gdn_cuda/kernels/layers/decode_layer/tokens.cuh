// layers/decode_layer before the recurrence: where a sequence's states are, the convolution's channels, gates, and what the
// norm multiplies by.
#pragma once

#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>
#include <gdn_cuda/kernels/layers/decode_layer/plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_row.cuh>

namespace gdn_cuda::layers {

// Slots on their way: of the recurrence's state and of the convolution's, which verify keeps in the first slot of a sequence.
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
        const Place of_state = place_of(args, state), of_conv = place_of(args, conv);
        if (of_state == Place::skip || of_conv == Place::skip) return Place::skip;
        return of_state == Place::poison ? of_state : of_conv;
    }
};

// Offset in `state_out` of where the state after token t goes; negative: nowhere.
__device__ __forceinline__ i64 target_of_token(const DecodeLayerArgs& args, int sequence, i64 slot, int t) {
    if (args.step_slots.data != nullptr) {
        const i64 row = load_index(args.step_slots, sequence);
        return row < 0 || row >= args.step_slot_count ? -1 : row * args.out_slot + t * args.out_step;
    }
    if (!args.by_token) return t + 1 == args.tokens ? slot * args.out_slot : -1;
    const i64 of_token = load_index(args.slots, sequence * args.slots_sequence + t * args.slots_token);
    return place_of(args, of_token) == Place::run ? of_token * args.out_slot : -1;
}

// The channels of a key head: those of query and key, then those of its value heads' rows.
template <DecodeLayerConfig kConfig>
struct LayerChannels {
    using Io = Storage<kConfig.io>;

    const DecodeLayerArgs& args;
    int sequence, key_head;
    const Io *query, *key, *value;  // of the first token

    __device__ __forceinline__ LayerChannels(const DecodeLayerArgs& args, int sequence, int key_head)
        : args(args),
          sequence(sequence),
          key_head(key_head),
          query(row(args.query)),
          key(row(args.key)),
          value(row(args.value)) {
        // Otherwise the compiler multiplies strides again wherever it uses one of these.
        asm volatile("" : "+l"(query), "+l"(key), "+l"(value));
    }

    __device__ __forceinline__ const Io* row(const Rows& rows) const {
        return static_cast<const Io*>(rows.data) + sequence * rows.batch + key_head * rows.head;
    }
    // Among those of all heads.
    __device__ __forceinline__ int number(int c) const {
        const int of_keys = key_head * kConfig.head_k, all_keys = args.key_heads * kConfig.head_k;
        if (c < kConfig.head_k) return of_keys + c;
        if (c < kConfig.pairs()) return all_keys + of_keys + (c - kConfig.head_k);
        return 2 * all_keys + key_head * args.heads_per_key * args.dv + (c - kConfig.pairs());
    }
    __device__ __forceinline__ const Io* inputs(int c, i64& token_stride) const {
        const bool is_query = c < kConfig.head_k, is_key = c < kConfig.pairs();
        token_stride = is_query ? args.query.token : is_key ? args.key.token : args.value.token;
        return (is_query ? query : is_key ? key : value) + (c - (is_query ? 0 : is_key ? kConfig.head_k : kConfig.pairs()));
    }
};

// Numbers on their way. Their dtype, known at run time, is looked at once for all: loads of either size into one register would
// wait for each other.
template <int kCount>
struct RawNumbers {
    unsigned bits[kCount];

    __device__ __forceinline__ void load(const Tagged& from, i64 at, int stride) {
        if (from.type == DType::f32) {
            const unsigned* wide = static_cast<const unsigned*>(from.data) + at;
#pragma unroll
            for (int i = 0; i < kCount; ++i) bits[i] = wide[i * stride];
        } else {
            const unsigned short* narrow = static_cast<const unsigned short*>(from.data) + at;
#pragma unroll
            for (int i = 0; i < kCount; ++i) bits[i] = narrow[i * stride];
        }
    }
    __device__ __forceinline__ float number(int i, const Tagged& from) const { return number_of(bits[i], from.type); }
};

// One channel of the convolution.
template <DecodeLayerConfig kConfig>
struct LayerChannel {
    using Io = Storage<kConfig.io>;
    using Channels = LayerChannels<kConfig>;
    static constexpr int kHistory = kLayerTaps - 1, kAhead = kConfig.tokens < 4 ? kConfig.tokens : 4;

    int number;  // among the channels of all heads
    RawNumbers<kLayerTaps> taps;
    RawNumbers<kHistory> history;
    RawNumbers<1> bias;
    Io x[kAhead];

    __device__ __forceinline__ void load_tokens(const Channels& all, int c, int first) {
        i64 stride;
        const Io* from = all.inputs(c, stride);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
            if (kConfig.tokens == 1 || first + i < all.args.tokens) x[i] = from[(first + i) * stride];
    }
    // What does not wait for a slot.
    __device__ __forceinline__ void load_inputs(const Channels& all, int c) {
        const DecodeLayerArgs& args = all.args;
        number = all.number(c);
        load_tokens(all, c, 0);
        taps.load(args.weight, number * args.weight_channel, args.weight_tap);
        if (args.bias.data != nullptr) bias.load(args.bias, number * args.bias_channel, 0);
    }
    // `at`: the oldest input before the first token, of channel 0.
    __device__ __forceinline__ void load_history(const DecodeLayerArgs& args, i64 at) {
        history.load(args.conv.values, at + number * args.conv.channel, args.conv.column);
    }
    // The outputs, rounded to `Io` as the convolution alone rounds them: store(t, y). `last`: the inputs before the next token.
    template <class Store>
    __device__ __forceinline__ void run(const Channels& all, int c, float (&last)[kHistory], const Store& store) {
        const DecodeLayerArgs& args = all.args;
        float tap[kLayerTaps];
#pragma unroll
        for (int i = 0; i < kHistory; ++i) last[i] = history.number(i, args.conv.values);
#pragma unroll
        for (int k = 0; k < kLayerTaps; ++k) tap[k] = taps.number(k, args.weight);
        const float constant = args.bias.data == nullptr ? 0.f : bias.number(0, args.bias);
#pragma unroll 1
        for (int first = 0; first < (kConfig.tokens == 1 ? 1 : args.tokens); first += kAhead) {
            if (kConfig.tokens > 1 && first > 0) load_tokens(all, c, first);
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
};

// Whether a channel's state is the three inputs before the next token, and nothing else.
__device__ __forceinline__ bool keeps_last_inputs(const DecodeLayerArgs& args) {
    return args.step_conv.values.data == nullptr && !args.by_token && args.conv_columns == kLayerTaps - 1;
}

// Number i of a channel's inputs: the columns of its state from `first` on, `columns` of them, and then the tokens.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ float channel_input(const LayerChannels<kConfig>& all, int c, i64 state, int columns, int i) {
    const DecodeLayerArgs::ConvStates& conv = all.args.conv;
    if (i < columns) return load_number(conv.values, state + i * static_cast<i64>(conv.column));
    i64 stride;
    const auto* from = all.inputs(c, stride);
    return to_float(from[(i - columns) * stride]);
}

// Writes the convolution's state behind the tokens, of one channel, which no other thread reads any more.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void store_history(const LayerChannels<kConfig>& all, int c, const LayerSlots& slots,
                                              const float (&last)[kLayerTaps - 1]) {
    constexpr int kHistory = kLayerTaps - 1;
    const DecodeLayerArgs& args = all.args;
    const int channel = all.number(c);
    const i64 row = slots.conv * args.conv.slot + channel * args.conv.channel;
    const auto store = [&](int column, float x) {
        store_number(args.conv.values, row + column * static_cast<i64>(args.conv.column), x);
    };
    if (keeps_last_inputs(args)) {
#pragma unroll
        for (int i = 0; i < kHistory; ++i) store(i, last[i]);
        return;
    }
    if (args.step_conv.values.data != nullptr) {
        const i64 step_row = load_index(args.step_slots, all.sequence);
        if (step_row < 0 || step_row >= args.step_slot_count) return;
        const DecodeLayerArgs::ConvStates& to = args.step_conv;
        const i64 before = row + slots.conv_first * static_cast<i64>(args.conv.column);
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
#pragma unroll 1
            for (int i = 0; i < kHistory; ++i)
                store_number(const_cast<void*>(to.values.data), to.values.type,
                             step_row * to.slot + t * to.step + channel * to.channel + i * static_cast<i64>(to.column),
                             channel_input(all, c, before, kHistory, t + 1 + i));
        return;
    }
    // Verify keeps the inputs before the tokens but the first, and all tokens; else the last inputs stay. Columns move to the
    // front, so that each is read before it is written.
    const int columns = args.by_token ? kHistory : args.conv_columns;
    const int shift = args.by_token ? 1 : args.tokens;
    const int count = args.by_token ? kHistory - 1 + args.tokens : args.conv_columns;
    const i64 from = args.by_token ? row + slots.conv_first * static_cast<i64>(args.conv.column) : row;
#pragma unroll 1
    for (int i = 0; i < count; ++i) store(i, channel_input(all, c, from, columns, i + shift));
}

// The gates of one token and value head.
__device__ __forceinline__ LayerGate layer_gate(const DecodeLayerArgs& args, int sequence, int t, int key_head, int head) {
    const auto at = [&](const DecodeLayerArgs::Gates& of) {
        return sequence * of.batch + t * of.token + key_head * of.key_head + head * of.head;
    };
    const i64 value_head = static_cast<i64>(key_head) * args.heads_per_key + head;
    RawNumbers<1> a, b, A_log, dt_bias;
    a.load(args.a.values, at(args.a), 0);
    b.load(args.b.values, at(args.b), 0);
    A_log.load(args.A_log, value_head, 0);
    dt_bias.load(args.dt_bias, value_head, 0);
    const float x = a.number(0, args.a.values) + dt_bias.number(0, args.dt_bias);
    return {expf(log_decay(A_log.number(0, args.A_log), x)), args.beta_scale * sigmoid(b.number(0, args.b.values))};
}

// What row `row` of a head is multiplied by when it is normalised; `gate`: its z.
__device__ __forceinline__ float layer_gain(const DecodeLayerArgs& args, float gate, int row) {
    RawNumbers<1> weight;
    weight.load(args.norm_weight, row * args.norm_weight_row, 0);
    const float s = silu_gate(gate);
    return weight.number(0, args.norm_weight) * (args.sigmoid_gate ? s : gate * s);
}

}  // namespace gdn_cuda::layers
