// What a block has to do: one pass over a segment, or the next of the work tiles that a persistent block takes.
#pragma once

#include <gdn_cuda/kernels/chunked/config.cuh>

namespace gdn_cuda::gdn {

// What a pass computes. A segment maps a state S to S M + L.
enum class ChunkedPass {
    transition,        // rows of M
    summary,           // L
    cache,             // only T, P and factors, which the outputs pass reads
    group_transition,  // rows of M of a group of segments, from the segments' M
    group_summary,     // its L
    chain,  // the state before this segment: from the state after the first one, S M + L for each group and segment between
    outputs,
};
constexpr int kMaxPasses = 7;  // the rows of M may take two

// One pass of a block: a segment and the warm-up before it, a value head, some rows of the state. Tokens and chunks are counted
// from the pass's first. A chain loads M instead: 64 rows of M are stored like one chunk's keys.
struct ChunkedWork {
    ChunkedPass pass;
    bool stores_cache, loads_cache;      // the pass caches what helper roles compute; reads it instead of computing it
    i64 start, initial_slot, last_slot;  // first token; element offsets of the sequence's state slots
    int length, chunks, first_output;    // chunks: 0 for a chain; no outputs before chunk first_output
    int first_scores;                    // no scores before this chunk; a pass that caches forms all of them
    int chunk_stride;                    // tokens from a chunk to the next, where a block takes only some of a segment's
    int tokens_before;                   // in the sequence
    bool begins, ends;                   // starts or ends the sequence
    void* cached;                        // this block's, one a chunk
    int segment;
    i64 summary;   // index of this segment's summary, or of its group's
    i64 from, to;  // summaries whose state is loaded and stored; -1: the caller's state
    int readers;   // value groups that read the caller's initial state: those of this row tile, up to this segment
    int sequence, head, key_head, first_row, rows;
    int first_value;         // first value row; for M past dv, where TMA fills with zeros
    i64 checkpoints_before;  // how many the sequences packed before this one have
    // The summaries to apply: first those of some groups, then those of some segments.
    i64 first_group_summary, first_segment_summary;
    int group_summaries, segment_summaries;
};

// The work that a persistent block takes at a time: a sequence, a value head, some rows of the state. Its chunks and tokens are
// counted from the block's first, so that stages and parities go on from tile to tile; `chunks` is where its chunks end.
struct WorkTile : ChunkedWork {
    static constexpr int kNone = -1;  // as `chunks`, after the last work tile
    int first;                        // chunk
    const char *gates, *betas;        // where its first token's are
};
struct WorkTiles {
    // At the end of a work tile, more are planned until they cover the next one and kAhead further chunks: the scores role
    // reads them two chunks ahead, and sees a new plan up to three chunks late. The slots hold these, and the one whose state
    // is still being stored, even if each has one chunk.
    static constexpr int kAhead = 4, kSlots = 8, kNoMoreChunks = 1 << 30;
    WorkTile slots[kSlots];
    struct alignas(4) Chunk {
        short tokens;
        bool ends_work_tile, is_last;
    };
    Chunk chunks[kWorkTileStages];  // by stage
    int planned, begun, next;       // work tiles planned and begun; the next to plan, counted over all blocks
    int planned_chunks;
};
template <bool kPersistent>
struct WorkTilesIf {};
template <>
struct WorkTilesIf<true> : WorkTiles {};

}  // namespace gdn_cuda::gdn
