// Configuration and arguments of gdn/move_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

enum class StatesMove : int {
    gather,        // the call's initial states to dense ones, with zeros for what it does not read
    scatter,       // dense states to where the call wants its last ones
    first_before,  // the initial states to their rows among the states before blocks of tokens
    other_before,  // checkpoints to theirs
    copy,          // rows to rows
    identity       // to dense states: zeros in rows with values, the identity in those below
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
    RecurrentStates from, to;  // the one that is not the call's own
    i64 rows;                  // to visit: sequences, or states before blocks
    i64 checkpoints;           // there are, for other_before
    int block_tokens;          // of states before
    i64* dense_slots;          // gather: n, or what makes a sequence skip or poison its output
};

}  // namespace gdn_cuda::gdn
