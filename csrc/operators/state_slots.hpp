// States in slots of a pool: checks of the tensors that say which states a call reads and writes, for operators of any family
// (include/gdn_cuda/kernels/common/state_slots.cuh reads them).
#pragma once

#include <gdn_cuda/options.hpp>

#include "tensor.hpp"

namespace gdn_cuda {

// The sequences of a call, and the tensor whose device the others have to be on.
struct Batch {
    int64_t sequences;
    int64_t tokens;  // of each sequence, if they are not packed
    bool packed;
    View like;
    const char* like_name;
};

// The argument of VerifyOptions, as errors name it.
inline constexpr const char* kAcceptedTokens = "num_accepted_tokens";

// The tensors that a call passed; a View is undefined where the caller passed None.
struct SlotTensors {
    const char *pool_name, *slots_name;
    View pool{};        // (slots, …)
    View slots{};       // (sequences,), or (sequences, tokens) for speculative verify
    View accepted{};    // (sequences,)
    View steps{};       // (rows, tokens, …)
    View step_slots{};  // (sequences,)

    bool by_token() const { return slots.defined() && slots.rank == 2; }
};

SlotTensors slot_tensors(const char* pool_name, const char* slots_name, const View& pool, const OptionalTensor& slots,
                         const VerifyOptions& verify, const StepStates& steps);
inline View accepted_of(const VerifyOptions& verify) {
    return view_of(verify.num_accepted_tokens);
}

void check_indices(const Checks& check, const char* argument, const View& indices, const Batch& batch);
// The same, with a value for each sequence.
void check_per_sequence(const Checks& check, const char* argument, const View& indices, const Batch& batch);
// The element of indices on the CPU.
int64_t index_at(const View& indices, int64_t i);
// Tokens after which each sequence's state is reported. Values are checked on the CPU: on a GPU reading them would wait for it,
// and the rows of tokens that do not exist are NaN.
void check_checkpoint_offsets(const Checks& check, const View& offsets, const View& cu_seqlens, const Batch& batch);
Tagged check_accepted(const Checks& check, const View& accepted, const Batch& batch);
// The slot that means padding, or -1.
int64_t check_null_slot(const Checks& check, const std::optional<int64_t>& null_slot);
// Checks all five tensors, except the shape of one state.
void check_slots(const Checks& check, const SlotTensors& x, const Batch& batch);
// `to_pool`: whether a last state is written to the pool.
void check_write_indices(const Checks& check, const View& write_indices, const SlotTensors& x, bool to_pool,
                         const Batch& batch);
// A parent for each token: branches of a tree start from step states.
void check_parents(const Checks& check, const View& parents, const SlotTensors& x, const Batch& batch);
// update_state = False, where slots for every token are not what the call writes.
void check_update_state(const Checks& check, bool update_state, const SlotTensors& x);

// Fills the slots of a kernel's arguments.
template <class Args>
void set_slots(const Checks& check, Args& args, const SlotTensors& x) {
    args.slots = tagged(x.slots);
    args.slots_sequence = x.slots.stride(0);
    args.slots_token = x.by_token() ? x.slots.stride(1) : 0;
    args.slot_steps = x.by_token() ? check.count(x.slots_name, "columns", x.slots.size(1)) : 1;
    args.slot_count = check.count(x.pool_name, "slots", x.pool.size(0));
}
// Fills the tree of tokens of a kernel's arguments.
template <class Args>
void set_parents(Args& args, const View& parents) {
    args.parents = tagged(parents);
    args.parents_sequence = parents.stride(0);
    args.parents_token = parents.stride(1);
    args.parents_count = static_cast<int>(parents.size(1));
}
// Fills the rows of step states of a kernel's arguments.
template <class Args>
void set_step_slots(const Checks& check, Args& args, const SlotTensors& x) {
    args.step_slots = tagged(x.step_slots);
    args.step_slot_count = check.count("step_states", "rows", x.steps.size(0));
    args.step_limit = check.count("step_states", "tokens", x.steps.size(1));
}

}  // namespace gdn_cuda
