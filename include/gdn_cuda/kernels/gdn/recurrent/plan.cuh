// Configuration and arguments of gdn/recurrent, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/row_layout.cuh>

namespace gdn_cuda::gdn {

struct RecurrentConfig {
    int head_k;           // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;         // head_k is exactly the tensors'; else the tail is masked
    DType io;             // query, key, value, output
    DType state;          // the state in memory; registers hold fp32
    int rows_per_thread;  // rows per group of lanes; they share a token's loads
    int warps;
    bool aligned;  // every row is 16-byte aligned

    constexpr bool operator==(const RecurrentConfig&) const = default;

    GDN_FIELDS(head_k, exact_k, io, state, rows_per_thread, warps, aligned)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    // On an SM. Without them the compiler spills a few registers of one row a thread, and gives two rows more than they need.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        if (rows_per_thread == 1 || head_k == 64) return 3;
        return layout().per_lane <= 8 ? 4 : layout().per_lane <= 16 ? 3 : 1;
    }
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

// State slots: (slots, Hv, dv, dk), or (slots, steps, Hv, dv, dk); strides in elements. Only gdn/recurrent_any takes states
// that are not contiguous, or of another dtype than its call's.
struct RecurrentStates {
    void* data = nullptr;
    i64 slot = 0, step = 0;
    i64 head = 0, row = 0, column = 0;
    DType type = DType::f32;
};

inline constexpr int kMostTreeTokens = 64;

struct RecurrentArgs {
    Rows query, key, value, output;
    Scalars beta, gate;  // without data: 1, and 0
    GateForms forms;
    Tagged A_log, dt_bias;  // of a raw gate
    int sequences, tokens, heads, heads_per_key, dk, dv;
    int values, outputs;  // rows of the state with values (those below have 0) and with outputs; dv but for chunked_summary
    float scale;
    bool qk_norm;
    Tagged cu_seqlens;

    // Start state: slot slots[n, accepted - 1] (slot n without `slots`), at step accepted - 1.
    RecurrentStates initial;  // data == nullptr: zeros
    Tagged slots;             // (sequences,) or (sequences, slot_steps)
    i64 slots_sequence, slots_token;
    int slot_count, slot_steps;  // bounds: an index past the pool makes the output NaN and writes no state
    Tagged accepted;             // tokens accepted in the last verify; below 1 counts as 1
    i64 null_slot;               // like negatives, skips its sequence; -1: none
    const bool* has_initial;     // (sequences,): whether a sequence reads its slot, or starts from zeros; nullptr: all read

    // Stored states: `last` after the last token, `steps` after every `step_interval` tokens.
    RecurrentStates last;  // by last_slots[n], else slots[n], else n
    Tagged last_slots;     // (sequences,): a negative or null slot, or one past the pool, is not written
    int last_slot_count;
    RecurrentStates steps;
    int step_interval, step_limit;  // no step is stored from token step_limit on
    enum StepIndex : int { by_sequence, by_slot_of_token, by_step_slot, packed } step_index;
    Tagged step_slots;  // by_step_slot: row of sequence n
    Tagged parents;     // (sequences, parents_count): tokens of a tree; if absent, each continues from the one before
    i64 parents_sequence, parents_token;
    int parents_count;  // at most kMostTreeTokens
    int step_slot_count;
};

}  // namespace gdn_cuda::gdn
