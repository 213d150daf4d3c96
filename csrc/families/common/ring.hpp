// Rings of tokens that the states in a pool lack (include/gdn_cuda/kernels/recurrence/ring.cuh reads them): checks of an
// operator's arguments.
#pragma once

#include <gdn_cuda/kernels/recurrence/ring_plan.cuh>

#include "../../operators/state_slots.hpp"
#include "ring_blocks.hpp"
#include "state_scales.hpp"

namespace gdn_cuda {

// The arguments that operators with rings share. A View is undefined where the caller passed None.
struct RingTensors {
    View pool, scales, slots, accepted, fold_mask, pending;
    std::optional<int64_t> null_slot;
    bool fold;

    template <class Call>
    explicit RingTensors(const Call& x)
        : pool(x.state_pool),
          scales(view_of(x.state_scales)),
          slots(view_of(x.state_indices)),
          accepted(accepted_of(x.verify)),
          fold_mask(view_of(x.fold_mask)),
          pending(x.pending),
          null_slot(x.null_slot),
          fold(x.fold) {}
};

// Checks which slot each sequence has, and how many tokens of its last call are accepted; fills their part of a kernel's
// arguments.
template <class Args>
void set_sequence_slots(const Checks& check, Args& args, const View& pool, const View& slots, const View& accepted,
                        const std::optional<int64_t>& null_slot, const Batch& batch) {
    check_slots(check, {.pool_name = "state_pool", .slots_name = "state_indices", .pool = pool, .slots = slots}, batch);
    GDN_REQUIRE(check, !slots.defined() || slots.rank == 1, "state_indices", "(sequences,), a slot each", shape_text(slots));
    args.slots = tagged(slots);
    args.slots_sequence = slots.defined() ? slots.stride(0) : 0;
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.accepted = check_accepted(check, accepted, batch);
    args.null_slot = check_null_slot(check, null_slot);
}
// Checks the pool, and which of its states are written; fills their part of a kernel's arguments. Returns the states' dtype.
// `layout` and `columns`: the names of a pool's dimensions, and of the last one.
DType check_ring_pool(const Checks& check, RingArgs& args, const RingTensors& x, std::initializer_list<int64_t> shape,
                      const char* layout, const char* columns, DType io, const Batch& batch);
// The ring's first tensor says how many tokens a slot has room for.
void check_ring_room(const Checks& check, RingArgs& args, const RingTensors& x, const char* argument, const View& ring,
                     const char* layout, const Batch& batch);
// A tensor of the ring, (slots, W, heads, …): every slot's entries are whole rows, which kernels copy 16 bytes at a time.
RingTensor check_ring(const Checks& check, const char* argument, const View& ring, std::initializer_list<int64_t> shape,
                      const char* layout, DType type, const Batch& batch);
void check_ring_pending(const Checks& check, RingArgs& args, const RingTensors& x, const Batch& batch);

// The blocks of a sequence are counted in the upper bits of `pending`. `rows`: of all heads, as the error names them.
template <class Problem>
void check_ring_blocks(const Checks& check, const Problem& problem, const char* tokens, const char* rows_argument,
                       const char* rows, int64_t got) {
    constexpr i64 kMost = (1 << (32 - kRingPendingBits)) - 1;
    const Blocks blocks = problem.blocks(problem.smallest_block());
    GDN_REQUIRE(check, blocks[0] * blocks[1] <= kMost, rows_argument,
                fmt::format("at most {} {} in all heads", kMost * problem.smallest_block(), rows), fmt::format("{}", got));
    check.grid(tokens, blocks);
}

}  // namespace gdn_cuda
