// Configuration, shared memory and arguments of gdn/replay, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

struct ReplayConfig {
    int head_k;    // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;  // head_k is exactly the tensors'; else the tail is masked
    DType io;      // query, key, value, output, stored keys
    DType state;   // the state in memory; registers hold fp32
    int tokens;    // of a sequence, stored or new, at most
    bool aligned;  // every row is 16-byte aligned
    int warps;

    constexpr bool operator==(const ReplayConfig&) const = default;

    GDN_FIELDS(head_k, exact_k, io, state, tokens, aligned, warps)

    static constexpr int kRowsPerThread = 4;  // they share a thread's reads and conversions of keys and queries
    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    // Row steps in flight in shared memory; 0: rows go straight to registers. Long batches of tokens need the room themselves.
    GDN_HOST_DEVICE constexpr int stages() const { return !exact_k || !aligned ? 0 : tokens > 8 ? 1 : 2; }
    // On an SM: so many registers a thread need no spills, and shared memory has room for as many.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        return exact_k && aligned && tokens <= 8 && layout().per_lane <= 16 ? 4 : 3;
    }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes * kRowsPerThread; }
    GDN_HOST_DEVICE constexpr int most_rows() const { return threads(); }  // of a block: a thread each, once products are known
    GDN_HOST_DEVICE constexpr int most_steps() const { return most_rows() / rows_per_step(); }
};

// A new token's scalars.
struct alignas(16) ReplayToken {
    float decay, beta, key_scale, query_scale;
    float state_key, state_query;  // factors of S k and S q, S being the state before all new tokens
    int first;                     // the last reset up to this token: nothing older reaches it; -1: none
};

template <ReplayConfig kConfig>
struct ReplaySharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    struct Coefficients {  // of an earlier token's update in a later token's prediction and output
        float predicted, answered;
    };
    static constexpr int kTokens = kConfig.tokens, kRows = kConfig.most_rows(), kBankPadding = 8;

    Vector state[kConfig.stages() > 0 ? kConfig.stages() : 1][ReplayConfig::kRowsPerThread][kConfig.layout().vectors()]
                [kConfig.threads()];
    Row vectors[2 * kTokens];  // key and query of each new token in turn
    Row stored_keys[kTokens];
    float stored[kTokens][kRows];                       // stored updates, times all decays after them
    float products[2 * kTokens][kRows + kBankPadding];  // of every vector with every row of the state
    float gram[2 * kTokens][2 * kTokens];               // of vectors with vectors
    Coefficients coefficients[kTokens][kTokens];        // [later][earlier]
    ReplayToken token[kTokens];
    unsigned short value[kTokens][kRows];  // in bits
};

struct ReplayArgs {
    Rows query, key, value, output;
    Scalars beta, gate;  // b and a, before sigmoid and softplus
    float beta_factor;   // of the sigmoid
    Tagged A_log, dt_bias;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    int steps;  // of rows, per block
    float scale;
    bool qk_norm;
    Tagged cu_seqlens;

    Tagged slots;  // (sequences,); if absent, sequence n has slot n
    i64 slots_sequence;
    i64 slot_count, null_slot;
    Tagged accepted;  // (sequences,): stored steps to apply; if absent, none
    void* pool;       // (slots, Hv, dv, dk)
    i64 pool_slot;    // this and the others: strides between slots, in elements

    // What the last call stored. Keys and decays are read by many blocks and written by one, so they have two banks: a block
    // reads the one that `banks` names for its rows, and the new steps go to the other.
    void* keys;      // (slots, 2, stored_steps, Hk, dk), as they were given
    float* updates;  // (slots, stored_steps, Hv, dv): v', times the key's scale
    float* decays;   // (slots, 2, stored_steps, Hv)
    float* banks;    // (slots, Hv, dv / kRowsPerBank), 0 or 1
    i64 keys_slot, updates_slot, decays_slot, banks_slot;
    int stored_steps;
};
inline constexpr int kRowsPerBank = 8;

}  // namespace gdn_cuda::gdn
