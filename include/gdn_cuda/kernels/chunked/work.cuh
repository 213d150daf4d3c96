// What a block has to do: one pass over a segment, or the next of the work tiles that a persistent block takes.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// What a pass computes. A segment maps a state S to S M + L.
enum class PrefillPass {
    transfer,        // rows of M
    summary,         // L
    records,         // only the records that the outputs pass reads
    group_transfer,  // rows of M of a group of segments, from the segments' M
    group_summary,   // its L
    link,  // the state before this segment: from the state after the first one, S M + L for each group and segment between
    outputs,
};
constexpr int kMaxPasses = 7;  // the rows of M may take two

// One pass of a block: a segment and the warm-up before it, a value head, some rows of the state. Tokens and chunks are counted
// from the pass's first. A link loads M instead: 64 rows of M are stored like one chunk's keys.
struct PrefillWork {
    PrefillPass pass;
    bool exports, imports;               // the pass writes what helper roles compute to records; reads it from there
    i64 start, initial_slot, last_slot;  // first token; element offsets of the sequence's state slots
    int length, chunks, first_output;    // chunks: 0 for a link; no outputs before chunk first_output
    int first_scores;                    // no scores before this chunk; a pass that exports forms all of them
    int spacing;                         // tokens from a chunk to the next, where a block takes some chunks only
    int tokens_before;                   // in the sequence
    bool begins, ends;                   // starts or ends the sequence
    void* records;                       // this block's, one a chunk
    int segment;
    i64 link;      // index of this segment's link, or of its group's
    i64 from, to;  // links whose state is loaded and stored; -1: the caller's state
    int readers;   // of the caller's initial state: value groups of this row tile, up to this segment
    int sequence, head, key_head, first_row, rows;
    int first_value;         // first value row; for M past dv, where TMA fills with zeros
    i64 checkpoints_before;  // of the sequences packed before
    // The links to follow: first some groups' links, from group_link on, then some segments' links, from segment_link on.
    i64 group_link, segment_link;
    int group_links, segment_links;
};

// One of the items that a block takes one after another: a sequence, a value head, some rows of the state. Its chunks and
// tokens are counted from the block's first, so that stages and parities go on from item to item; `chunks` is where its chunks
// end.
struct PrefillItem : PrefillWork {
    static constexpr int kNone = -1;  // as `chunks`, behind the last item
    int first;                        // chunk
    const char *gates, *betas;        // of its first token
};
struct PrefillItems {
    // At the end of an item, items are planned until they cover the next one and kAhead further chunks: scores reads items two
    // chunks ahead, and sees a new plan up to three chunks late. The slots hold these items, and the one whose state is still
    // being stored, even if each has one chunk.
    static constexpr int kAhead = 4, kSlots = 8, kNoMoreChunks = 1 << 30;
    PrefillItem slots[kSlots];
    struct alignas(4) Chunk {
        short tokens;
        bool ends_item, is_last;
    };
    Chunk chunks[3];           // by stage
    int planned, begun, next;  // items: so many are planned and begun; of all blocks', the one to plan next
    int planned_chunks;
};
template <bool kPersistent>
struct PrefillItemsIf {};
template <>
struct PrefillItemsIf<true> : PrefillItems {};

}  // namespace gdn_cuda::gdn
