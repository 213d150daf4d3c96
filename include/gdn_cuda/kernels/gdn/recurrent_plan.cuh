// Configuration and arguments of gdn/recurrent, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/row_layout.cuh>

namespace gdn_cuda::gdn {

struct RecurrentConfig {
    int head_k;           // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;         // it is the tensor's own; else the tail is masked
    DType io;             // query, key, value, output
    DType state;          // the state in memory; registers hold fp32
    int rows_per_thread;  // value rows per group of lanes: they share what is read of a token
    int warps;
    bool aligned;  // every row starts on 16 bytes

    constexpr bool operator==(const RecurrentConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("exact_k", exact_k);
        visit("io", io);
        visit("state", state);
        visit("rows_per_thread", rows_per_thread);
        visit("warps", warps);
        visit("aligned", aligned);
    }

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    // Told that three blocks shall fit, the compiler gives one row a thread the registers it needs; left alone, it spills a
    // few.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return rows_per_thread == 1 ? 3 : 1; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return threads() / layout().lanes * rows_per_thread; }
};

// A batch of tokens in shared memory, read by all rows of a block.
template <auto kConfig>
struct TokenBatch {
    static constexpr int kTokens = 16;
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    Row query[kTokens], key[kTokens];
    TokenScalars scalars[kTokens];
    float value[kTokens][kConfig.rows_per_block()];  // a row's value, then its output
};

// State slots: (slots, Hv, dv, dk), each slot contiguous, any strides between slots and between steps of a slot.
struct RecurrentStates {
    void* data = nullptr;
    i64 slot = 0, step = 0;  // strides in elements
};

struct RecurrentArgs {
    Rows query, key, value, output;
    Scalars beta, gate;  // as given; with A_log they are `b` and `a`, before sigmoid and softplus
    Tagged A_log, dt_bias;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    float scale;
    bool qk_norm;
    Tagged cu_seqlens;

    // Where a sequence starts from: slot slots[n, accepted - 1] (slot n without `slots`), at step accepted - 1.
    RecurrentStates initial;  // data == nullptr: zeros
    Tagged slots;             // (sequences,) or (sequences, slot_steps)
    i64 slots_sequence, slots_token;
    int slot_count, slot_steps;  // bounds: an index past the pool makes the output NaN and touches nothing
    Tagged accepted;             // accepted tokens of the last verify; below 1 counts as 1
    i64 null_slot;               // besides negatives, skips its sequence; -1: none

    // Where states go. `last` is written after the last token, `steps` after every `step_interval` tokens.
    RecurrentStates last;  // by slots[n], or n without `slots`
    RecurrentStates steps;
    int step_interval, step_limit;  // tokens from step_limit on have no place
    enum StepIndex : int { by_sequence, by_slot_of_token, by_step_slot, packed } step_index;
    Tagged step_slots;  // by_step_slot: the row of sequence n
    int step_slot_count;
};

}  // namespace gdn_cuda::gdn
