// The chunks of a window: which they are, and their positions.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/kda/window_plan.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ int kda_chunks_in(const Span& span) {
    return max((span.length + kChunk - 1) / kChunk, 1);
}
__device__ __forceinline__ int kda_position(const GdnCall& call, const KdaWindow& window, int sequence, const Span& span,
                                            int chunk) {
    return window.positions != nullptr ? window.positions[first_kda_chunk(span.start, sequence) + chunk]
                                       : chunk * call.sequences + sequence;
}
// Most calls divide by 1. A division is a chain of some hundred cycles, for which a block's first load would wait.
__device__ __forceinline__ unsigned quotient(unsigned x, unsigned divisor) {
    return divisor == 1 ? x : x / divisor;
}
// The chunk at a position of the window; false if it has none.
__device__ __forceinline__ bool find_kda_place(const GdnCall& call, const KdaWindow& window, int in_window, int& sequence,
                                               int& chunk) {
    const unsigned position = window.first + in_window, sequences = call.sequences;
    if (window.places == nullptr) {
        chunk = static_cast<int>(quotient(position, sequences));
        sequence = static_cast<int>(position - chunk * sequences);
        return true;
    }
    const KdaChunkPlace place = window.places[position];
    sequence = place.sequence_and_one - 1;
    chunk = place.chunk;
    return sequence >= 0;
}

}  // namespace gdn_cuda::gdn
