// The segments of a sequence in a window, which its length decides.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/window.cuh>

namespace gdn_cuda::gdn {

// How many of a sequence's chunks come before a position. By whole warps.
__device__ __forceinline__ int kda_chunks_before(const GdnCall& call, const KdaWindow& window, int sequence, const Span& span,
                                                 int position) {
    const int chunks = kda_chunks_in(span);
    if (window.positions == nullptr) return min(max((position - sequence + call.sequences - 1) / call.sequences, 0), chunks);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int least = 0, most = chunks;
    while (least < most) {
        const int step = (most - least + 31) / 32, last_of_step = least + (lane + 1) * step - 1;
        const bool is_before = last_of_step < most && kda_position(call, window, sequence, span, last_of_step) < position;
        least += __popc(__ballot_sync(0xffffffffu, is_before)) * step;
        most = min(most, least + step - 1);
    }
    return least;
}

// By whole warps.
struct KdaSequenceSegments {
    int first, last;  // chunks in the window; a sequence of no tokens has one
    int count, first_slot;

    KdaSequenceSegments() = default;
    __device__ __forceinline__ KdaSequenceSegments(const KdaOwnArgs& args, int sequence, const Span& span) {
        const GdnCall& call = args.chunked.call;
        const KdaWindow& window = args.window;
        first = window.first == 0 ? 0 : kda_chunks_before(call, window, sequence, span, window.first);
        last = max(kda_chunks_before(call, window, sequence, span, window.first + window.count), first);
        first_slot = args.segments.first_slot(window.positions != nullptr, span.start, sequence);
        count = min(max((last - first + args.segments.chunks - 1) / args.segments.chunks, 1), args.segments.slots - first_slot);
    }
    __device__ __forceinline__ int begin(int segment) const {
        return first + static_cast<int>(static_cast<i64>(last - first) * segment / count);
    }
};

// The last sequence whose slots begin at or before `slot`; -1: none. By whole warps. Sequences that are split are few.
__device__ __forceinline__ int kda_sequence_of(const KdaOwnArgs& args, int slot) {
    const GdnCall& call = args.chunked.call;
    const bool packed = args.window.positions != nullptr;
    if (!packed) return slot / args.segments.per_sequence;
    int sequence = -1;
#pragma unroll 1
    for (int first = 0; first < call.sequences; first += 32) {
        const int own = first + static_cast<int>(threadIdx.x) % 32;
        const bool begins = own < call.sequences &&
                            args.segments.first_slot(packed, span_of(call.cu_seqlens, own, call.tokens).start, own) <= slot;
        const unsigned found = __ballot_sync(0xffffffffu, begins);
        if (found != 0) sequence = first + 31 - __clz(static_cast<int>(found));
    }
    return sequence;
}

__device__ __forceinline__ float* kda_segment_state(const KdaOwnArgs& args, int slot, int head) {
    const GdnCall& call = args.chunked.call;
    return args.segments.states + (static_cast<i64>(slot) * call.heads + head) * (call.dv + call.dk) * call.dk;
}

}  // namespace gdn_cuda::gdn
