// Configuration, shared memory and arguments of gdn/decode_layer, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/row_layout.cuh>

namespace gdn_cuda::gdn {

inline constexpr int kLayerTaps = 4;         // of the convolution
inline constexpr int kMostLayerTokens = 16;  // of a sequence, in one call
inline constexpr int kMostPartHeads = 8;     // value heads of a part
inline constexpr int kMostHeadRows = 256;    // of a value head

struct DecodeLayerConfig {
    int head_k;  // exactly the tensors': 64, 96, 128, 192 or 256
    DType io;    // projections and output
    DType state;
    int tokens;  // of a sequence, at most: 1, 4 or kMostLayerTokens
    int blocks;  // of a key head: a cluster, or one block alone

    constexpr bool operator==(const DecodeLayerConfig&) const = default;

    GDN_FIELDS(head_k, io, state, tokens, blocks)

    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int threads() const { return 128; }
    // On an SM, as registers allow: lanes of 16-bit states have more elements, and with one token keep query and key as floats.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        const int of_floats = layout().per_lane > 16 ? 3 : 5;
        return state == DType::f32 ? of_floats : of_floats == 3 ? 2 : tokens > 1 ? 4 : 3;
    }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes; }
    // Row steps in flight.
    GDN_HOST_DEVICE constexpr int stages() const {
        const int step_bytes = threads() * layout().per_lane * bytes_of(state);
        return (tokens == 1 ? 32 : 24) * 1024 / step_bytes;
    }
    GDN_HOST_DEVICE constexpr int pairs_per_block() const { return 2 * head_k / blocks; }  // channels of query and key
    // Of a part, which is one head at least.
    GDN_HOST_DEVICE constexpr int rows_per_block() const {
        const int rows = tokens == 1 ? 256 : tokens == 4 ? 128 : 64, least = kMostHeadRows / blocks;
        return rows > least ? rows : least;
    }
};

struct LayerGate {
    float decay, beta;
};

// The ring is read by the threads that fill it; the rest is a part's tokens. Query, key and outputs come from all blocks of the
// key head.
template <DecodeLayerConfig kConfig>
struct DecodeLayerSharedPlan {
    // Outputs of a part that this block normalises.
    static constexpr int kOutputs = kConfig.tokens * kConfig.rows_per_block() + kMostHeadRows;

    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    Vector state[kConfig.stages()][kConfig.layout().vectors()][kConfig.threads()];
    Row query[kConfig.tokens], key[kConfig.tokens];
    TokenScalars products[kConfig.tokens];  // of query and key; the gates are
    LayerGate gates[kConfig.tokens][kMostPartHeads];
    i64 target[kConfig.tokens];  // where the state after a token goes; negative: nowhere
    float value[kConfig.tokens][kConfig.rows_per_block()];
    float output[kOutputs];
    float gain[kOutputs];  // norm weight times the activated z
};

// Strides in elements. C channels are those of query, key and value: 2 Hk dk + Hv dv.
struct DecodeLayerArgs {
    Rows query, key, value, z;  // `head` is the stride of key heads; value and z have all rows of a key head in turn
    struct Gates {              // (sequence, token, key head, value head of it)
        Tagged values;
        i64 batch = 0, token = 0, key_head = 0, head = 0;
    };
    Gates a, b;
    Tagged A_log, dt_bias, norm_weight;
    i64 norm_weight_row = 0;
    Tagged weight, bias;  // (C, 4), (C,)
    i64 weight_channel = 0, weight_tap = 0, bias_channel = 0;
    void* output = nullptr;  // (sequence, token, Hv dv)
    i64 output_batch = 0, output_token = 0;

    int sequences, tokens, key_heads, heads_per_key, dv;
    int part_heads;  // value heads of a part
    float scale, epsilon, beta_scale;
    bool silu;          // after the convolution
    bool sigmoid_gate;  // of the norm; else silu

    struct ConvStates {  // (slots, C, columns) or (rows, tokens, C, 3)
        Tagged values;
        i64 slot = 0, step = 0, channel = 0, column = 0;
    };
    ConvStates conv;
    int conv_columns;
    ConvStates step_conv;  // the inputs before the next token, after every token; then `conv` is not written

    const void* state_in = nullptr;  // (slots, Hv, dv, dk)
    void* state_out = nullptr;       // the pool, or step states
    i64 state_slot = 0, out_slot = 0, out_step = 0;
    // A sequence's state is in slots[n], with `by_token` in slots[n, accepted - 1]; its inputs are in slots[n, 0].
    Tagged slots;
    i64 slots_sequence = 0, slots_token = 0;
    int slot_count, slot_steps;
    bool by_token;
    Tagged accepted;
    i64 null_slot;
    Tagged step_slots;  // rows of step states, if there are any
    int step_slot_count;
};

}  // namespace gdn_cuda::gdn
