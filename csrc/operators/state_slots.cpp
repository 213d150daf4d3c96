#include "state_slots.hpp"

#include <gdn_cuda/kernels/common/token_tree_plan.cuh>

namespace gdn_cuda {

SlotTensors slot_tensors(const char* pool_name, const char* slots_name, const View& pool, const OptionalTensor& slots,
                         const VerifyOptions& verify, const StepStates& steps) {
    return {pool_name,
            slots_name,
            pool,
            view_of(slots),
            accepted_of(verify),
            view_of(steps.step_states),
            view_of(steps.step_slots)};
}

void check_indices(const Checks& check, const char* argument, const View& indices, const Batch& batch) {
    check.dtype(argument, indices, {DType::i32, DType::i64});
    check.device(argument, indices, batch.like, batch.like_name);
}

void check_per_sequence(const Checks& check, const char* argument, const View& indices, const Batch& batch) {
    check_indices(check, argument, indices, batch);
    check.shape(argument, indices, {batch.sequences}, "(sequences,)");
    check.last_contiguous(argument, indices);
}

int64_t index_at(const View& indices, int64_t i) {
    return *dtype_of(indices) == DType::i32 ? static_cast<const int32_t*>(indices.data)[i]
                                            : static_cast<const int64_t*>(indices.data)[i];
}

void check_checkpoint_offsets(const Checks& check, const View& offsets, const View& cu_seqlens, const Batch& batch) {
    check_per_sequence(check, "checkpoint_offsets", offsets, batch);
    if (!offsets.is_cpu()) return;
    for (int64_t i = 0; i < offsets.size(0); ++i) {
        const int64_t length = cu_seqlens.defined() ? index_at(cu_seqlens, i + 1) - index_at(cu_seqlens, i) : batch.tokens;
        GDN_REQUIRE(check, index_at(offsets, i) <= length, "checkpoint_offsets",
                    fmt::format("at most the {} tokens of sequence {}", length, i), fmt::format("{}", index_at(offsets, i)));
    }
}

Tagged check_accepted(const Checks& check, const View& accepted, const Batch& batch) {
    if (accepted.defined()) check_per_sequence(check, kAcceptedTokens, accepted, batch);
    return tagged(accepted);
}

int64_t check_null_slot(const Checks& check, const std::optional<int64_t>& null_slot) {
    GDN_REQUIRE(check, null_slot.value_or(0) >= 0, "null_slot", "a slot number, or None",
                fmt::format("{}", null_slot.value_or(0)));
    return null_slot.value_or(-1);
}

void check_slots(const Checks& check, const SlotTensors& x, const Batch& batch) {
    if (x.slots.defined()) {
        check_indices(check, x.slots_name, x.slots, batch);
        GDN_REQUIRE(check, (x.slots.rank == 1 || x.slots.rank == 2) && x.slots.size(0) == batch.sequences, x.slots_name,
                    fmt::format("({0},) or ({0}, T), a row for each sequence", batch.sequences), shape_text(x.slots));
        const bool wide_enough =
            x.slots.rank == 1 || (x.slots.size(1) >= 1 && (batch.packed || x.slots.size(1) >= batch.tokens));
        GDN_REQUIRE(check, wide_enough, x.slots_name, fmt::format("a slot for each of {} tokens", batch.tokens),
                    shape_text(x.slots));
    } else {
        GDN_REQUIRE(check, x.pool.size(0) >= batch.sequences, x.pool_name,
                    fmt::format("a slot for each of {} sequences, as {} is None", batch.sequences, x.slots_name),
                    shape_text(x.pool));
    }
    if (x.accepted.defined()) {
        GDN_REQUIRE(
            check, x.by_token(), kAcceptedTokens, fmt::format("rank-2 {} to choose from", x.slots_name),
            x.slots.defined() ? fmt::format("{} {}", x.slots_name, shape_text(x.slots)) : fmt::format("{} None", x.slots_name));
        check_accepted(check, x.accepted, batch);
    }
    GDN_REQUIRE(check, x.steps.defined() == x.step_slots.defined(), x.steps.defined() ? "step_slots" : "step_states",
                "both step_states and step_slots", "one of them");
    if (x.steps.defined()) {
        GDN_REQUIRE(check, x.steps.rank == x.pool.rank + 1, "step_states",
                    fmt::format("rank {}, that of {} and one for tokens", x.pool.rank + 1, x.pool_name), shape_text(x.steps));
        GDN_REQUIRE(check, batch.packed || x.steps.size(1) >= batch.tokens, "step_states",
                    fmt::format("room for {} tokens in each row", batch.tokens), shape_text(x.steps));
        check_per_sequence(check, "step_slots", x.step_slots, batch);
    }
}

void check_write_indices(const Checks& check, const View& write_indices, const SlotTensors& x, bool to_pool,
                         const Batch& batch) {
    GDN_REQUIRE(check, to_pool, "write_indices", "None where no last state is written to the pool", "a tensor");
    GDN_REQUIRE(check, x.slots.defined(), "write_indices", fmt::format("None without {}", x.slots_name), "a tensor");
    check_per_sequence(check, "write_indices", write_indices, batch);
}

void check_parents(const Checks& check, const View& parents, const SlotTensors& x, const Batch& batch) {
    GDN_REQUIRE(check, x.steps.defined(), "parents", "None without step_states", "a tensor");
    check_indices(check, "parents", parents, batch);
    const int64_t tokens = batch.packed ? 0 : batch.tokens;
    GDN_REQUIRE(check,
                parents.rank == 2 && parents.size(0) == batch.sequences && parents.size(1) >= tokens &&
                    parents.size(1) <= kMostTreeTokens,
                "parents",
                fmt::format("({}, T), a parent for each of {} tokens, T at most {}", batch.sequences, tokens, kMostTreeTokens),
                shape_text(parents));
}

void check_update_state(const Checks& check, bool update_state, const SlotTensors& x) {
    GDN_REQUIRE(check, update_state || x.steps.defined() || !x.by_token(), "update_state", "True with a slot for each token",
                "False");
}

}  // namespace gdn_cuda
