// Which items blocks of gdn/kda_own have: 64 rows of the state of a sequence and head, or of a segment's L or M, through some
// of its chunks, and where that state comes from and goes.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/segments.cuh>

namespace gdn_cuda::gdn {

// Whether a chunk of the window is the first of its sequence there.
__device__ __forceinline__ bool starts_in_window(const KdaOwnArgs& args, int in_window, int& sequence, int& chunk) {
    const GdnCall& call = args.chunked.call;
    if (!find_kda_place(call, args.window, in_window, sequence, chunk)) return false;
    return chunk == 0 || kda_position(call, args.window, sequence, span_of(call.cu_seqlens, sequence, call.tokens), chunk - 1) <
                             args.window.first;
}
// The states of an item whose chunks begin or end its sequence's in the window; the sequence has `chunks`.
__device__ __forceinline__ void find_carried_states(const KdaOwnArgs& args, int chunks, KdaOwnItem& item) {
    const GdnCall& call = args.chunked.call;
    float* const carried = args.carried == nullptr
                               ? nullptr
                               : args.carried + (static_cast<i64>(item.sequence) * call.heads + item.head) * call.dv * call.dk;
    item.before = item.first == 0 ? nullptr : carried;
    item.after = item.last == chunks ? nullptr : carried;
}

// Where sequences are split. By whole warps; false if the block has none.
__device__ __forceinline__ bool find_kda_segment(const KdaOwnArgs& args, int index, KdaOwnItem& item) {
    const GdnCall& call = args.chunked.call;
    const bool follows = args.segments.follow;
    const int tiles = args.row_tiles + (follows ? 0 : (call.dk + kValueRows - 1) / kValueRows), head_index = index / tiles,
              slot = head_index / call.heads, tile = index - head_index * tiles;
    item.head = head_index - slot * call.heads;
    item.sequence = kda_sequence_of(args, slot);
    if (item.sequence < 0) return false;
    const Span span = span_of(call.cu_seqlens, item.sequence, call.tokens);
    const KdaSequenceSegments segments(args, item.sequence, span);
    const int segment = slot - segments.first_slot;
    const bool is_first = segment == 0, is_last = segment == segments.count - 1, is_transition = tile >= args.row_tiles;
    if (segment >= segments.count || segments.first == segments.last) return false;
    if (follows ? is_first : is_first ? is_transition : is_last) return false;
    const bool has_outputs = follows || is_first;
    const int chunks = (span.length + kChunk - 1) / kChunk;
    item.row_tile = is_transition ? tile - args.row_tiles : tile;
    item.rows = has_outputs ? KdaOwnRows::outputs : is_transition ? KdaOwnRows::transition : KdaOwnRows::addition;
    item.first = segments.begin(segment);
    item.last = min(segments.begin(segment + 1), chunks);
    find_carried_states(args, chunks, item);
    if (!is_first) item.before = kda_segment_state(args, slot - 1, item.head);
    if (!is_last) item.after = kda_segment_state(args, slot, item.head) + (is_transition ? call.dv * call.dk : 0);
    item.stores_state = !follows || is_last;  // the fold has those between
    item.first_record = kda_position(call, args.window, item.sequence, span, item.first) - args.window.first;
    item.first_record = max(min(item.first_record, args.window.count - 1), 0);  // sequences may overlap
    return true;
}

// By whole warps; false if there is none. first >= last: the sequence has no tokens, or overlaps others.
__device__ __forceinline__ bool find_kda_item(const KdaOwnArgs& args, int index, KdaOwnItem& item) {
    if (args.segments.chunks > 0) return find_kda_segment(args, index, item);
    // In the window's order, in which longer sequences come first.
    const GdnCall& call = args.chunked.call;
    const int head_index = index / args.row_tiles, in_window = head_index / call.heads;
    if (!starts_in_window(args, in_window, item.sequence, item.first)) return false;
    item.head = head_index - in_window * call.heads;
    item.row_tile = index - head_index * args.row_tiles;
    const Span span = span_of(call.cu_seqlens, item.sequence, call.tokens);
    const int chunks = (span.length + kChunk - 1) / kChunk;
    item.last = chunks;
    if (!args.window.is_last)
        item.last =
            min(kda_chunks_before(call, args.window, item.sequence, span, args.window.first + args.window.count), chunks);
    item.rows = KdaOwnRows::outputs;
    find_carried_states(args, chunks, item);
    item.stores_state = true;
    item.first_record = in_window;
    return true;
}

}  // namespace gdn_cuda::gdn
