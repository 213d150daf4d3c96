// A pool of states that a causal convolution reads its initial states from and writes its final states to.
#pragma once

#include "../../operators/state_slots.hpp"
#include "causal_conv_checks.hpp"

namespace gdn_cuda::conv {

struct CausalPool {
    const Written& conv_state;
    const OptionalTensor &state_indices, &has_initial_state;
};

inline void set_pool(const Checks& check, PreparedCausal& prepared, const CausalPool& given, bool packed) {
    const View pool(given.conv_state), slots = view_of(given.state_indices), has_initial = view_of(given.has_initial_state);
    const int64_t least = prepared.args.taps - 1;
    GDN_REQUIRE(check, pool.rank == 3 && pool.size(1) == prepared.x.size(1) && pool.size(2) >= least, "conv_state",
                fmt::format("(slots, D={}, {} or more)", prepared.x.size(1), least), shape_text(pool));
    check.dtype("conv_state", pool, state_types(prepared.x));
    check.device("conv_state", pool, prepared.x, "x");
    const Batch batch{prepared.sequences, prepared.x.size(2), packed, prepared.x, "x"};
    GDN_REQUIRE(check, !slots.defined() || slots.rank == 1, "state_indices", "(sequences,)", shape_text(slots));
    check_slots(check, {.pool_name = "conv_state", .slots_name = "state_indices", .pool = pool, .slots = slots}, batch);
    CausalSequenceArgs& sequences = prepared.args.sequences;
    sequences.initial = states_of(pool);
    sequences.slots = tagged(slots);
    if (slots.defined()) sequences.slots_sequence = slots.stride(0);
    sequences.slot_count = check.count("conv_state", "slots", pool.size(0));
    if (has_initial.defined()) {
        check_per_sequence(check, "has_initial_state", has_initial, batch);
        sequences.has_initial = tagged(has_initial);
        sequences.has_initial_sequence = has_initial.stride(0);
    }
    check.distinct("conv_state", pool);
}

}  // namespace gdn_cuda::conv
