// How a chain of the backward is split along time, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// Where heads are few, a chain is split along time. A segment maps a state S to S M + L, row by row, whatever S is. A first
// launch takes the first segment as it is, and computes L and M of those between; gdn/backward_links applies them one after
// another; a later launch takes all other segments at once. Segments are counted in the chain's order.
struct ChainSegments {
    int count = 1;  // 1: a block takes a whole sequence
    bool later = false;
    float* after = nullptr;        // (sequence and head, segment but the last, dv, dk): the state after it; before that, L
    float* transitions = nullptr;  // (sequence and head, segment but the last, dk, dk): M
};

}  // namespace gdn_cuda::gdn
