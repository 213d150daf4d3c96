// Configuration and arguments of gdn/recurrent, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/row_layout.cuh>

namespace gdn_cuda::gdn {

struct RecurrentConfig {
    int head_k;           // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;         // it is the tensor's own; else the tail is masked
    DType io;             // query, key, value, output
    DType state;          // the state in memory; registers hold fp32
    int rows_per_thread;  // value rows per group of lanes, all in flight at once
    int warps;
    bool aligned;   // every row starts on 16 bytes
    bool prefetch;  // load a token while the one before it is computed: for many tokens, at the cost of registers

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
        visit("prefetch", prefetch);
    }

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return threads() / layout().lanes * rows_per_thread; }
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
