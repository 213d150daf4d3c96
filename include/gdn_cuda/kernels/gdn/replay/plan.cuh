// Configuration, shared memory and arguments of gdn/replay, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

struct ReplayConfig {
    int head_k;    // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;  // the tensors have this key dimension; else theirs is smaller, and the tail is masked
    DType io;      // query, key, value, output, stored keys
    DType state;   // the state in memory; registers hold fp32
    int tokens;    // the most tokens of a sequence, stored or new
    bool aligned;  // every row is 16-byte aligned
    int warps;
    bool channel_gates = false;  // a gate for every channel of the key

    constexpr bool operator==(const ReplayConfig&) const = default;

    GDN_FIELDS(head_k, exact_k, io, state, tokens, aligned, warps, channel_gates)

    static constexpr int kRowsPerThread = 4;  // a thread reads and converts keys and queries once for all of them
    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    // Row steps in flight in shared memory; 0: rows are loaded into registers. Many tokens leave less room for them.
    GDN_HOST_DEVICE constexpr int stages() const { return !exact_k || !aligned ? 0 : tokens > 8 ? 1 : 2; }
    // Blocks per SM: with this bound no register spills, and shared memory has room for as many blocks.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        if (channel_gates) return tokens <= 8 ? 3 : 2;
        return exact_k && aligned && tokens <= 8 && layout().per_lane <= 16 ? 4 : 3;
    }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes * kRowsPerThread; }
    GDN_HOST_DEVICE constexpr int most_rows() const { return threads(); }  // per block: finish_tokens has one thread per row
    GDN_HOST_DEVICE constexpr int most_steps() const { return most_rows() / rows_per_step(); }
};

// A new token's scalars.
struct alignas(16) ReplayToken {
    float decay, beta, key_scale, query_scale;
    float state_key, state_query;  // factors of S k and S q, with S the state before all new tokens
    int first;                     // the last token up to this one that resets: nothing before it has an effect; -1: none
};

template <ReplayConfig kConfig, bool kChannelGates = kConfig.channel_gates>
struct ReplayDecays {};
template <ReplayConfig kConfig>
struct alignas(16) ReplayDecays<kConfig, true> {
    float decays[kConfig.tokens][kConfig.head_k], stored_decays[kConfig.tokens][kConfig.head_k];  // 1 past dk
};

template <ReplayConfig kConfig>
struct ReplaySharedPlan : ReplayDecays<kConfig> {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    struct Coefficients {  // the weight of an earlier token's update in a later token's prediction and output
        float prediction, output;
    };
    static constexpr int kTokens = kConfig.tokens, kRows = kConfig.most_rows(), kBankPadding = 8;

    Vector state[kConfig.stages() > 0 ? kConfig.stages() : 1][ReplayConfig::kRowsPerThread][kConfig.layout().vectors()]
                [kConfig.threads()];
    Row keys_and_queries[2 * kTokens];  // key, query of token 0, key, query of token 1, ...
    Row stored_keys[kTokens];
    float stored[kTokens][kRows];                       // stored updates times the product of all decays after them
    float products[2 * kTokens][kRows + kBankPadding];  // keys and queries x rows of the state
    float gram[2 * kTokens][2 * kTokens];               // keys and queries x keys and queries
    Coefficients coefficients[kTokens][kTokens];        // [later][earlier]
    ReplayToken token[kTokens];
    unsigned short value[kTokens][kRows];  // the bits of 16-bit values
};

struct ReplayArgs {
    Rows query, key, value, output;
    Scalars beta, gate;  // b and a, before sigmoid and softplus
    float beta_factor;   // beta is this times a sigmoid
    Tagged A_log, dt_bias;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    int steps;  // row steps per block
    float scale;
    bool qk_norm;
    Tagged cu_seqlens;

    Tagged slots;  // (sequences,); if absent, sequence n has slot n
    i64 slots_sequence;
    i64 slot_count, null_slot;
    Tagged accepted;  // (sequences,): how many stored tokens to apply; if absent, none
    void* pool;       // (slots, Hv, dv, dk)
    i64 pool_slot;    // this and the other *_slot: strides between slots, in elements

    // What the last call stored. Many blocks read keys and decays and one block writes them, so they have two banks: a block
    // reads the bank in `banks` for its rows, and new tokens are written to the other.
    void* keys;      // (slots, 2, stored_steps, Hk, dk), unscaled
    float* updates;  // (slots, stored_steps, Hv, dv): v' times the key's scale
    float* decays;   // (slots, 2, stored_steps, Hv), with gates of channels (slots, 2, stored_steps, Hv, dk)
    float* banks;    // (slots, Hv, dv / kRowsPerBank), 0 or 1
    i64 keys_slot, updates_slot, decays_slot, banks_slot;
    int stored_steps;

    // With a gate for every channel.
    ChannelGates channels;
    GateForms forms;  // how beta is given
};
inline constexpr int kRowsPerBank = 8;

}  // namespace gdn_cuda::gdn
