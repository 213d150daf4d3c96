// Configuration, shared memory and arguments of layers/decode_layer, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/channel_gates.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::layers {

inline constexpr int kLayerTaps = 4;         // taps of the convolution
inline constexpr int kMostLayerTokens = 16;  // per sequence in one call
inline constexpr int kMostHeadRows = 256;    // per value head
inline constexpr int kRowQuarters = 4;       // per value head; a block has one, two or four of them

struct DecodeLayerConfig {
    int head_k;  // exactly the tensors': 64, 96, 128, 192 or 256
    DType io;    // projections and output
    DType state;
    int tokens;                  // per sequence, at most: 1, 4 or kMostLayerTokens
    bool plain;                  // the convolution's tensors have the dtype `io` and are read four channels at a time
    bool channel_gates = false;  // Kimi Delta Attention: a gate for every channel of the key, and one token

    constexpr bool operator==(const DecodeLayerConfig&) const = default;

    GDN_FIELDS(head_k, io, state, tokens, plain, channel_gates)

    GDN_HOST_DEVICE constexpr gdn::StateLayout layout() const { return gdn::StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int threads() const { return 128; }
    // Minimum blocks per SM, limited by registers: a lane has 8, 12, 16 or 24 elements of a row, and with one token it keeps
    // query and key as floats.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        const int elements = layout().per_lane;
        if (state == DType::f32) return tokens > 1 ? 4 : elements == 12 ? 3 : head_k == 256 ? 4 : 5;
        return elements == 24 ? 2 : 4;
    }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes; }
    // Row steps in flight.
    GDN_HOST_DEVICE constexpr int stages() const {
        const int step_bytes = threads() * layout().per_lane * bytes_of(state);
        return (tokens == 1 ? 32 : 24) * 1024 / step_bytes;
    }
    GDN_HOST_DEVICE constexpr int pairs() const { return 2 * head_k; }  // channels of query and key
};

struct LayerGate {
    float decay, beta;
};

// Four adjacent channels of 16 bits.
struct alignas(8) FourChannels {
    unsigned low, high;
};

// A thread reads only its own entries of the ring and the histories. All threads read the rest, which is for one value head at
// a time, except query and key. All blocks of a head write the squares.
template <DecodeLayerConfig kConfig>
struct DecodeLayerSharedPlan : gdn::ChannelDecays<kConfig.head_k, kConfig.channel_gates> {
    static constexpr int kChannels = kConfig.pairs() + kMostHeadRows;

    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    Vector state[kConfig.stages()][kConfig.layout().vectors()][kConfig.threads()];
    Row query[kConfig.tokens], key[kConfig.tokens];
    gdn::TokenScalars products[kConfig.tokens];  // factors of query and key; decay and beta are in `gates`
    LayerGate gates[kConfig.tokens];
    i64 target[kConfig.tokens];  // offset of the state after a token; negative: it is not stored

    // The convolution's state after the tokens.
    union {
        float history[kConfig.plain ? 1 : kChannels][kLayerTaps - 1];
        FourChannels units[kConfig.plain ? kChannels / 4 : 1][kLayerTaps - 1];
    };
    alignas(16) float value[kConfig.tokens][kMostHeadRows];  // later the output
    alignas(16) float gain[kConfig.tokens][kMostHeadRows];   // norm weight times the activated z
    // Two buffers, since a block may still read the sums of one head while others store those of the next.
    double squares[2][kConfig.tokens][kRowQuarters];
};

// Strides in elements. C = 2 Hk dk + Hv dv, the channels of query, key and value.
struct DecodeLayerArgs {
    Rows query, key, value, z;  // `head` is the stride of key heads; value and z have all rows of a key head consecutively
    struct Gates {              // (sequence, token, key head, value head within the key head)
        Tagged values;
        i64 batch = 0, token = 0, key_head = 0, head = 0;
    };
    Gates a, b;
    Tagged A_log, dt_bias, norm_weight;
    i64 norm_weight_row = 0;
    Tagged weight, bias;  // (C, 4), (C,)
    i64 weight_channel = 0, bias_channel = 0;
    int weight_tap = 0;
    void* output = nullptr;  // (sequence, token, Hv dv)
    i64 output_batch = 0, output_token = 0;

    int sequences, tokens, key_heads, heads_per_key, dv;
    // heads_at_once * parts() blocks compute a key head. heads_at_once divides heads_per_key, parts() divides kRowQuarters.
    int heads_at_once;  // value heads at a time, with parts() blocks each
    int parts_log2;
    float scale, epsilon, beta_scale;
    bool silu;          // after the convolution
    bool sigmoid_gate;  // the norm's gate; else silu

    struct ConvStates {  // (slots, C, columns) or (rows, tokens, C, 3)
        Tagged values;
        i64 slot = 0, step = 0, channel = 0;
        int column = 0;
    };
    ConvStates conv;
    int conv_columns;
    bool by_columns;       // `conv` is contiguous along channels, not along columns
    ConvStates step_conv;  // if given, receives the last inputs after every token, and `conv` is not written

    const void* state_in = nullptr;  // (slots, Hv, dv, dk)
    void* state_out = nullptr;       // the pool, or step states
    i64 state_slot = 0, out_slot = 0, out_step = 0;
    // Sequence n's state is in slots[n], with `by_token` in slots[n, accepted - 1]; its convolution state is in slots[n, 0].
    Tagged slots;
    i64 slots_sequence = 0, slots_token = 0;
    int slot_count, slot_steps;
    bool by_token;
    Tagged accepted;
    i64 null_slot;
    GDN_HOST_DEVICE int parts() const { return 1 << parts_log2; }

    Tagged step_slots;  // rows of step_conv and step states, if given
    int step_slot_count;

    // With gates of channels, whose other strides are those of `a`. A_log and dt_bias may be absent, and norm_weight with z.
    gdn::ChannelGates channels;
    ConvStates conv_key, conv_value;  // channels counted from the first of key and value; `conv` has those of query
    int missing_taps;                 // of four; the first ones are 0
    i64 weight_part;                  // between the weights of query, key and value
    bool weight_by_taps;              // a plain weight is contiguous along channels, not along taps
};

}  // namespace gdn_cuda::layers
