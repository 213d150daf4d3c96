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
    identity       // fills dense states: zeros in the rows that have values, the identity in the dk rows below
};

struct MoveStatesConfig {
    StatesMove move;

    constexpr bool operator==(const MoveStatesConfig&) const = default;

    GDN_FIELDS(move)

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
};

}  // namespace gdn_cuda::gdn
