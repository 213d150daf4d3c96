// Which work tiles blocks of gdn/kda_own have: 64 rows of the state of a sequence and head, or of a segment's L or M, through
// some of its chunks, and where that state comes from and goes.
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
// The states of a work tile whose chunks begin or end its sequence's in the window; the sequence has `chunks`.
__device__ __forceinline__ void find_carried_states(const KdaOwnArgs& args, int chunks, KdaWorkTile& work_tile) {
    const GdnCall& call = args.chunked.call;
    float* const carried =
        args.carried == nullptr
            ? nullptr
            : args.carried + (static_cast<i64>(work_tile.sequence) * call.heads + work_tile.head) * call.dv * call.dk;
    work_tile.before = work_tile.first == 0 ? nullptr : carried;
    work_tile.after = work_tile.last == chunks ? nullptr : carried;
}

// Where sequences are split. By whole warps; false if the block has none.
__device__ __forceinline__ bool find_kda_segment(const KdaOwnArgs& args, int index, KdaWorkTile& work_tile) {
    const GdnCall& call = args.chunked.call;
    const bool follows = args.segments.follow;
    const int tiles = args.row_tiles + (follows ? 0 : (call.dk + kValueRows - 1) / kValueRows), head_index = index / tiles,
              slot = head_index / call.heads, tile = index - head_index * tiles;
    work_tile.head = head_index - slot * call.heads;
    work_tile.sequence = kda_sequence_of(args, slot);
    if (work_tile.sequence < 0) return false;
    const Span span = span_of(call.cu_seqlens, work_tile.sequence, call.tokens);
    const KdaSequenceSegments segments(args, work_tile.sequence, span);
    const int segment = slot - segments.first_slot;
    const bool is_first = segment == 0, is_last = segment == segments.count - 1, is_transition = tile >= args.row_tiles;
    if (segment >= segments.count || segments.first == segments.last) return false;
    if (follows ? is_first : is_first ? is_transition : is_last) return false;
    const bool has_outputs = follows || is_first;
    const int chunks = (span.length + kChunk - 1) / kChunk;
    work_tile.row_tile = is_transition ? tile - args.row_tiles : tile;
    work_tile.rows = has_outputs ? KdaOwnRows::outputs : is_transition ? KdaOwnRows::transition : KdaOwnRows::addition;
    work_tile.first = segments.begin(segment);
    work_tile.last = min(segments.begin(segment + 1), chunks);
    find_carried_states(args, chunks, work_tile);
    if (!is_first) work_tile.before = kda_segment_state(args, slot - 1, work_tile.head);
    if (!is_last) work_tile.after = kda_segment_state(args, slot, work_tile.head) + (is_transition ? call.dv * call.dk : 0);
    work_tile.stores_state = !follows || is_last;  // the fold has those between
    work_tile.first_record = kda_position(call, args.window, work_tile.sequence, span, work_tile.first) - args.window.first;
    work_tile.first_record = max(min(work_tile.first_record, args.window.count - 1), 0);  // sequences may overlap
    return true;
}

// By whole warps; false if there is none. first >= last: the sequence has no tokens, or overlaps others.
__device__ __forceinline__ bool find_kda_work_tile(const KdaOwnArgs& args, int index, KdaWorkTile& work_tile) {
    if (args.segments.chunks > 0) return find_kda_segment(args, index, work_tile);
    // In the window's order, in which longer sequences come first.
    const GdnCall& call = args.chunked.call;
    const int head_index = index / args.row_tiles, in_window = head_index / call.heads;
    if (!starts_in_window(args, in_window, work_tile.sequence, work_tile.first)) return false;
    work_tile.head = head_index - in_window * call.heads;
    work_tile.row_tile = index - head_index * args.row_tiles;
    const Span span = span_of(call.cu_seqlens, work_tile.sequence, call.tokens);
    const int chunks = (span.length + kChunk - 1) / kChunk;
    work_tile.last = chunks;
    if (!args.window.is_last)
        work_tile.last =
            min(kda_chunks_before(call, args.window, work_tile.sequence, span, args.window.first + args.window.count), chunks);
    work_tile.rows = KdaOwnRows::outputs;
    find_carried_states(args, chunks, work_tile);
    work_tile.stores_state = true;
    work_tile.first_record = in_window;
    return true;
}

}  // namespace gdn_cuda::gdn
