// The rows of L or of M that a block computes of a listed segment.
#pragma once

#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

// blockIdx: the segment, and the rows. Read where they are needed, to save registers.
struct SegmentRows {
    const GdnCall& call;
    const ListedSegments& listed;

    __device__ __forceinline__ const SummarySegment& segment() const { return listed.segments[blockIdx.x]; }
    __device__ __forceinline__ bool is_transition() const { return static_cast<int>(blockIdx.y) >= listed.value_tiles; }
    __device__ __forceinline__ int row_tile() const {
        return static_cast<int>(blockIdx.y) - (is_transition() ? listed.value_tiles : 0);
    }
    __device__ __forceinline__ bool has_work() const {
        if (static_cast<int>(blockIdx.x) >= *listed.count || segment().first == segment().last) return false;
        return !is_transition() || segment().result >= 0 || (segment().first == 0 && listed.transition);
    }
    __device__ __forceinline__ i64 below() const { return static_cast<i64>(call.dv) * call.dk; }  // L, M begins
    __device__ __forceinline__ float* pair_state(const RecurrentStates& states) const {
        return static_cast<float*>(states.data) + segment().sequence * states.slot + segment().head * states.head;
    }
    // L's rows before the segment; nullptr: zeros.
    __device__ __forceinline__ float* before() const {
        return call.initial.data == nullptr || segment().first > 0 ? nullptr : pair_state(call.initial);
    }
    __device__ __forceinline__ float* after() const {
        const i64 dk = call.dk;
        float* const summary =
            segment().result < 0 ? pair_state(call.last) : listed.results + segment().result * (below() + dk * dk);
        return summary + (is_transition() ? below() : 0);
    }
};

}  // namespace gdn_cuda::gdn
