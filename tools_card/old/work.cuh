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

// The tokens of a pass, with the warm-up before its segment; tokens and chunks are counted from the pass's first. Every role
// reads them.
struct PassTokens {
    int length, chunks;              // chunks: 0 for a chain
    int first_output, first_scores;  // no outputs and no scores before these chunks; a pass that caches forms all scores
    i64 start;                       // first token
    int chunk_stride;                // tokens from a chunk to the next, where a block takes only some of a segment's
    int before;                      // tokens before them in the sequence
};
// Where the value role's state comes from and goes.
struct PassStates {
    i64 initial_slot, last_slot;  // element offsets of the sequence's state slots
    bool begins, ends;            // the pass starts or ends the sequence
    i64 from, to;                 // summaries whose state is loaded and stored; -1: the caller's state
    i64 summary;                  // index of this segment's summary, or of its group's
    int readers;             // value groups that read the caller's initial state: those of this row tile, up to this segment
    i64 checkpoints_before;  // how many the sequences packed before this one have
};
// The summaries that a pass applies: first those of some groups, then those of some segments. 64 rows of an M are loaded like
// one chunk's keys.
struct PassSummaries {
    i64 first_of_groups, first_of_segments;
    int groups, segments;

    GDN_HOST_DEVICE constexpr int count() const { return groups + segments; }
    GDN_HOST_DEVICE constexpr i64 index_of(int summary) const {
        return summary < groups ? first_of_groups + summary : first_of_segments + (summary - groups);
    }
};
// What helper roles compute, cached by one pass and read by others in place of computing it.
struct PassCache {
    void* chunks;  // this block's CachedChunks
    bool stores, loads;
};

// One pass of a block: a sequence, a value head, some rows of the state.
struct ChunkedWork {
    PassTokens tokens;
    PassStates states;
    PassSummaries summaries;
    PassCache cache;
    ChunkedPass pass;
    int sequence, head, key_head, first_row, rows;
    int first_value;  // first value row; for M past dv, where TMA fills with zeros
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
