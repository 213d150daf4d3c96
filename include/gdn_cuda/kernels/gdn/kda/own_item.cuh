// Which work a block of gdn/kda_own has: 64 rows of the state of a sequence and head through some of its chunks, and where that
// state comes from and goes.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/window.cuh>

namespace gdn_cuda::gdn {

// Whether a chunk of the window is the first of its sequence there.
__device__ __forceinline__ bool starts_in_window(const KdaOwnArgs& args, int in_window, int& sequence, int& chunk) {
    const GdnCall& call = args.chunked.call;
    if (!find_kda_place(call, args.window, in_window, sequence, chunk)) return false;
    return chunk == 0 || kda_position(call, args.window, sequence, span_of(call.cu_seqlens, sequence, call.tokens), chunk - 1) <
                             args.window.first;
}
// Where the sequence's chunks in the window end, which begin with `first`. By whole warps.
__device__ __forceinline__ int end_in_window(const KdaOwnArgs& args, int sequence, const Span& span, int first) {
    const int past = args.window.first + args.window.count, lane = static_cast<int>(threadIdx.x) % 32,
              chunks = (span.length + kChunk - 1) / kChunk;
    for (int end = first;;) {
        const int chunk = end + lane;
        const bool is_inside = chunk < chunks && kda_position(args.chunked.call, args.window, sequence, span, chunk) < past;
        const int count = __popc(__ballot_sync(0xffffffffu, is_inside));
        end += count;
        if (count < 32) return end;
    }
}

// By whole warps; false if the block has none. first >= last: the sequence has no tokens, or overlaps others.
__device__ __forceinline__ bool find_kda_item(const KdaOwnArgs& args, int index, KdaOwnItem& item) {
    // The first chunks of the window have most work: their blocks start first.
    const GdnCall& call = args.chunked.call;
    const int head_index = index / args.row_tiles, in_window = head_index / call.heads;
    if (!starts_in_window(args, in_window, item.sequence, item.first)) return false;
    item.head = head_index - in_window * call.heads;
    item.row_tile = index - head_index * args.row_tiles;
    item.last = end_in_window(args, item.sequence, span_of(call.cu_seqlens, item.sequence, call.tokens), item.first);
    item.carried =
        args.carried == nullptr
            ? nullptr
            : args.carried + (static_cast<i64>(item.sequence) * call.heads + item.head) * call.dv * call.dk;
    return true;
}

}  // namespace gdn_cuda::gdn
