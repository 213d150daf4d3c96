// Configuration and arguments of gdn/move_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

enum class StatesMove : int {
    gather,        // the call's initial states to a dense buffer; zeros for sequences that read no state
    scatter,       // dense states to the slots or buffer of the call's last states
    first_before,  // initial states to the states before each sequence's first block of tokens
    other_before,  // checkpoints to the states before all other blocks
    at_offsets,    // dense states to row n each: 0 where its offset is 0 or its sequence is skipped, NaN where there is none
    copy,          // row n to row n
    identity,      // fills dense states: zeros in the rows that have values, the identity in the dk rows below
    convert        // row or slot n to row n or last slot n: `fills` says what becomes of rows whose slot is skipped
};

struct MoveStatesConfig {
    StatesMove move;
    bool from_codes = false, to_codes = false;  // int8, with scales

    constexpr bool operator==(const MoveStatesConfig&) const = default;

    GDN_FIELDS(move, from_codes, to_codes)

    static constexpr int kTile = 32;  // rows and columns of a state that a block moves
    GDN_HOST_DEVICE static constexpr int threads() { return 256; }
};

struct MoveStatesArgs {
    GdnCall call;
    RecurrentStates from, to;  // read unless the move reads or writes the call's initial or last states in its place
    i64 rows;                  // states to move: one per sequence, or one per block of tokens
    i64 checkpoints;           // other_before: how many `from` has
    int block_tokens;          // first_before and other_before: tokens per block
    i64* dense_slots;          // gather writes sequence n's dense slot: n, or an index that skips or poisons the sequence
    Tagged offsets;            // at_offsets: after how many tokens of each sequence
    bool fills;                // convert: rows of skipped slots become 0, and of slots past the pool NaN; else they stay
};

GDN_HOST_DEVICE const RecurrentStates& move_from(StatesMove move, const MoveStatesArgs& args) {
    return move == StatesMove::gather || move == StatesMove::first_before ? args.call.initial : args.from;
}
GDN_HOST_DEVICE const RecurrentStates& move_to(StatesMove move, const MoveStatesArgs& args) {
    return move == StatesMove::scatter ? args.call.last : args.to;
}

}  // namespace gdn_cuda::gdn
