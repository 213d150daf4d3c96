// The call of a kernel of the recurrence: its tokens, its gates, and where states start and go; for host and device.
#pragma once

#include <gdn_cuda/kernels/common/token_tree_plan.cuh>
#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/recurrence/channel_gates.cuh>

namespace gdn_cuda::gdn {

constexpr float kNormEpsilon = 1e-6f;  // l2 norms: x / sqrt(sum x^2 + epsilon)

// What the gates of a call are before the kernel; GdnCall::channels instead where every channel of the key has one.
struct GateForms {
    enum Gate : int { log_decay, raw, decay } gate = log_decay;  // raw: before softplus, with A_log and dt_bias
    bool beta_is_logit = false;
    float beta_factor = 1.f;  // multiplies a logit's sigmoid: 2 where eigenvalues may be negative

    constexpr bool fused() const { return gate == raw && beta_is_logit; }
};

// State slots: (slots, Hv, dv, dk), or (slots, steps, Hv, dv, dk); strides in elements. Only gdn/recurrent_any takes states
// that are not contiguous, or of another dtype than its call's.
struct RecurrentStates {
    void* data = nullptr;
    i64 slot = 0, step = 0;
    i64 head = 0, row = 0, column = 0;
    DType type = DType::f32;
    float* scales = nullptr;  // for int8 codes; each state is contiguous then
    i64 scales_slot = 0, scales_step = 0;
};

struct GdnCall {
    Rows query, key, value, output;
    Scalars beta, gate;  // without data: 1, and 0
    GateForms forms;
    Tagged A_log, dt_bias;  // where gates are raw
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
    bool keeps_skipped;          // a skipped sequence's outputs stay as they are; else they become 0
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

    ChannelGates channels;
};

}  // namespace gdn_cuda::gdn
