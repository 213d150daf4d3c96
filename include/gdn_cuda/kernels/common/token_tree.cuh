// Trees of tokens: each token continues from the state after a parent before it.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/token_tree_plan.cuh>

namespace gdn_cuda {

// A tree as it grows: a parent's state is in registers or stored as a step. `Args` has parents (sequences, parents_count), with
// strides parents_sequence and parents_token, and at most kMostTreeTokens of a sequence.
class Tree {
  public:
    enum Start { go_on, from_slot, from_step, nowhere };  // nowhere: the parent is none, or has no state

    // Where token t starts from. `has_step(parent)`: finds the parent's state among the steps, and says whether it is there.
    template <class Args, class HasStep>
    __device__ __forceinline__ Start next(const Args& args, int sequence, int t, const HasStep& has_step) {
        if (args.parents.data == nullptr) return go_on;
        if (t >= args.parents_count) return nowhere;
        const i64 parent = load_index(args.parents, sequence * args.parents_sequence + t * args.parents_token);
        if (parent < -1 || parent >= t || (parent >= 0 && (alive_ >> parent & 1) == 0)) return nowhere;
        Start start = go_on;
        if (parent != current_) {
            start = parent < 0 ? from_slot : from_step;
            if (start == from_step && !has_step(static_cast<int>(parent))) return nowhere;
        }
        alive_ |= 1ull << t;
        current_ = t;
        return start;
    }

  private:
    unsigned long long alive_ = 0;  // tokens that have states
    int current_ = -1;              // the token whose state is in registers
};

}  // namespace gdn_cuda
