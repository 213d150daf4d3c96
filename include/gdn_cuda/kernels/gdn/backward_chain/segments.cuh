// How a chain of the backward is split along time, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// A chain is split along time where states between its segments are known: forward has left checkpoints of S. Where heads are
// few, it is also split without: a segment maps a state to S M + L, row by row, whatever S is. A first launch takes the first
// segment as it is, and computes L and M of those between; gdn/backward_links applies them one after another; a later launch
// takes all other segments at once. Segments are counted in the chain's order.
struct ChainSegments {
    int count = 1;             // 1: a block takes a whole sequence
    int length = 1 << 30;      // chunks of a segment; the last may have fewer
    int begin = 0, taken = 1;  // the segments of this launch
    bool summarizes = false;   // those but the first
    float* after = nullptr;    // (dv, dk) for each sequence, head and segment but the last: the state after it; before that, L
    i64 sequence_stride = 0, head_stride = 0, segment_stride = 0;
    float* transitions = nullptr;  // (sequence, head, segment but the last, dk, dk): M

    GDN_HOST_DEVICE constexpr int between() const { return count - 1; }
    GDN_HOST_DEVICE constexpr float* state_after(int sequence, int head, int segment) const {
        return after + sequence * sequence_stride + head * head_stride + segment * segment_stride;
    }
    // The later launch.
    constexpr ChainSegments without_first() const {
        ChainSegments others = *this;
        others.begin = 1;
        others.summarizes = false;
        return others;
    }
};

}  // namespace gdn_cuda::gdn
