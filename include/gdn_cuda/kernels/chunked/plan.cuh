// Configuration, shared memory and arguments of gdn/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

constexpr int kWarpgroup = 128;      // threads
constexpr int kValueRows = 64;       // rows of the state per value warpgroup
constexpr int kTileElements = 64;    // elements in a 128-byte row
constexpr int kShortestSegment = 8;  // chunks
// In chunks, where a sequence's own length decides how it is split: the longest that is not; the fewest for each segment, if
// all heads get as many, and if some get more than others.
constexpr int kLongestWhole = 80, kShortestFixed = 16, kShortestUneven = 12;
constexpr int kMostByLength = 256;  // packed sequences that are ordered by their lengths

// Largest token stride of gates and betas, in elements: the kernel keeps the stride in bytes in 32 bits.
constexpr i64 kMostBetweenScalars = (i64{1} << 31) / 8;

struct PrefillConfig {
    int head_k;          // 64, 96 or 128; shorter keys are zero-padded
    int value_groups;    // warpgroups with 64 rows of the state each
    int inverse_groups;  // warpgroups that invert I + A, in turn
    int stages;          // chunks in flight in shared memory
    DType io;
    bool linked = false;      // a block may take several passes, to hand states from segment to segment (prefill_segments.cuh)
    bool persistent = false;  // one block per SM takes whole sequences one after another (prefill_items.cuh)

    constexpr bool operator==(const PrefillConfig&) const = default;

    GDN_FIELDS(head_k, value_groups, inverse_groups, stages, io, linked, persistent)

    // Warpgroup order: one that loads chunks and forms scores, those that invert, those that own the state.
    GDN_HOST_DEVICE constexpr int first_value_group() const { return 1 + inverse_groups; }
    GDN_HOST_DEVICE constexpr int threads() const { return (first_value_group() + value_groups) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return value_groups * kValueRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
    // setmaxnreg per role; value warpgroups hold the state and need the most registers, fewer for short keys.
    GDN_HOST_DEVICE constexpr int scores_registers() const { return value_groups == 2 && head_k == 128 ? 64 : 80; }
    GDN_HOST_DEVICE constexpr int inverse_registers() const { return value_groups == 2 ? 64 : 112; }
    GDN_HOST_DEVICE constexpr int value_registers() const { return value_groups == 1 ? 208 : head_k == 128 ? 192 : 184; }
};

// Similar keys with large beta give (I + A)^-1 large entries that cancel: rounding them, V' and P to 16 bits once would be most
// of the error. Chunks with an off-diagonal entry beyond this split all three into two 16-bit parts (docs/numerics.md).
constexpr float kCancelThreshold = 0.5f;

// Marks a chunk in which some exp(gate) is 0: -0, distinct from a decay product that underflows.
constexpr float kResets = -0.f;

// 64 tokens x 64 elements, 128-byte swizzled rows (shared.cuh).
struct alignas(1024) PrefillTile {
    unsigned char bytes[kChunk * kTileElements * 2];
};

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

// Segments whose maps are multiplied first, counted from the second segment on (prefill_segments.cuh); 1: none.
GDN_HOST_DEVICE constexpr int segments_in_group(int segments) {
    return segments < 14 ? 1 : segments < 17 ? 2 : 3;
}
GDN_HOST_DEVICE constexpr int groups_of(int segments) {
    return segments_in_group(segments) > 1 ? (segments - 4) / segments_in_group(segments) : 0;
}

// How many of a sequence's blocks each head gets, if some heads remember and others do not: those that remember get more.
struct PrefillSpread {
    static constexpr int kMostHeads = 32, kFewChunks = 4;
    // Of each head that remembers, by how many do; 0: as many as others. First, if the others need kFewChunks of warm-up at
    // most; then, if they need more.
    unsigned char segments[2][kMostHeads];
    int reach;  // with uneven numbers, a head that needs more warm-up chunks than this remembers; 0: never uneven

    GDN_HOST_DEVICE constexpr int most() const {
        int most = 0;
        for (const auto& of_kind : segments)
            for (const int each : of_kind) most = each > most ? each : most;
        return most;
    }
};

// Data passed between segments: (sequence, head, segment except the last, ...), padded to whole blocks of rows and columns.
struct PrefillLinks {
    float* states;           // L (dv, dk), of the first segment the state after it; then the states before all other segments
    void* transfers;         // M (dk, 2, dk): rounded to bf16, and the rounding residual
    unsigned* have_summary;  // per link: value groups that have written their rows of M and L; for a group's link, its two
                             // blocks each
    unsigned* have_state;    // per link and row tile: value groups that have written the state after the first segment
    i64 all, of_head;        // links in all, and of each head; 0: a head that remembers is not split
    int of_sequence;         // links, of a head: its segments', then its groups'
    int tokens;     // if not 0, packed sequences are split by their own lengths, with room for a link every `tokens` tokens
    void* records;  // PrefillRecord (head, row tile, chunk of all sequences), or nullptr
    i64 chunks;     // of all sequences, at most
    float first;    // length of the first segment in lengths of the others, which take more passes
};

template <PrefillConfig kConfig>
struct PrefillSharedPlan {
    struct Stage {
        PrefillTile key[kConfig.key_tiles()], query[kConfig.key_tiles()], value[kConfig.value_groups];
    };
    // Results of the helper roles for a chunk; zero above the diagonal.
    struct Matrices {
        PrefillTile inverse, inverse_rest;  // (I + A)^-1 diag(beta); its rounding residual, where needed
        PrefillTile scores;                 // q k^T, decayed and masked
    };
    struct alignas(4) CancelFlags {
        bool column[4];
    };
    // Per-token scalars; G: cumulative gates (log2), r: inverse norms of keys and queries.
    struct alignas(16) Factors {
        float gate[kChunk], beta[kChunk];
        // Exponents: key-key and query-key products are multiplied by 2^(row - column).
        float key_row[kChunk], query_row[kChunk], column[kChunk];
        float of_key[kChunk];     // exp(G) r: scales S k^T
        float of_query[kChunk];   // scale exp(G) r
        float of_update[kChunk];  // exp(G_end - G) r
    };
    // A 16 x 16 block of -A; on the diagonal, later of the inverse. The 8-column halves of rows 2 and 3 of every 4 are swapped,
    // so that four rows of eight columns hit 32 different banks.
    struct alignas(16) Block {
        static constexpr int kEightRows = 8 * 16;
        float numbers[16 * 16];

        GDN_HOST_DEVICE static constexpr int at(int row, int column) { return row * 16 + (column ^ (row >> 1 & 1) * 8); }
    };
    struct InverseScratch {
        Block blocks[10];  // lower triangle, row by row
    };
    Stage stages[kConfig.stages];
    Matrices matrices[kConfig.stages - 1];
    PrefillTile output[kConfig.value_groups];
    InverseScratch inverse[kConfig.inverse_groups];
    // Per column of blocks, whether the inverse has entries beyond kCancelThreshold; then it, V' and P are used in two parts.
    CancelFlags cancels[kConfig.stages - 1];
    Factors factors[kConfig.stages];
    float decay[kConfig.stages];               // exp(G_end) of a chunk, or kResets
    PrefillWork work, passes[kMaxPasses - 1];  // kept out of registers; passes run last to first
    int passes_left;
    unsigned long long loaded[kConfig.stages], ready[kConfig.stages];
    unsigned long long factored[kConfig.stages];        // exponents of keys, by scores, or with norms by the inverse
    unsigned long long done[kConfig.stages];            // by the value groups: stage and matrices are free
    unsigned long long walked[kConfig.inverse_groups];  // by the inverse warps: the scratch blocks have been read
    PrefillItemsIf<kConfig.persistent> items;
};

// A chunk's scalars as they are handed over: the factors, and what else depends on gates or entries of T.
template <PrefillConfig kConfig>
struct PrefillScalars : PrefillSharedPlan<kConfig>::Factors {
    float decay;
    typename PrefillSharedPlan<kConfig>::CancelFlags cancels;
    float unused[2];
};

// What helper roles compute of a chunk of a value head, in global memory.
template <PrefillConfig kConfig>
struct PrefillRecord {
    PrefillTile inverse, scores, inverse_rest;  // the last only where an entry of T cancels
    PrefillScalars<kConfig> scalars;
};

// Which calls a launch takes, or which sequences of a call. A head *remembers* if its state still matters far past a segment
// border, else it *forgets* (prefill_segments.cuh).
enum class PrefillTakes {
    every_call,
    if_all_forget,     // sequences split into segments
    if_one_remembers,  // sequences not split
    long_sequences,    // where the length of each decides: those that are split
    short_sequences,   // the others
};
GDN_HOST_DEVICE constexpr bool is_first_of_two(PrefillTakes takes) {
    return takes == PrefillTakes::if_one_remembers || takes == PrefillTakes::short_sequences;
}
GDN_HOST_DEVICE constexpr bool is_second_of_two(PrefillTakes takes) {
    return takes == PrefillTakes::if_all_forget || takes == PrefillTakes::long_sequences;
}

// What the first of two launches has found in the gates; it tells the other.
enum class PrefillDecision : unsigned { none, all_forget, one_remembers };

struct PrefillArgs {
    TensorMap query, key, value, output;  // (d, head, token, batch)
    TensorMap transfers;                  // (column, part, row, link)
    RecurrentArgs recurrence;
    DType state;
    int segments;    // into which a head that forgets is split
    bool by_length;  // a sequence has `segments` only if it is long enough; its own length decides
    int reach;       // up to this many warm-up chunks cost less than an unsplit or linked sequence
    PrefillTakes takes;
    PrefillLinks links;
    unsigned* decision;  // a zero, later the first launch's PrefillDecision for the second; or nullptr
    unsigned* readers;   // zeros, per sequence, head and row tile, if states are updated in place; else nullptr
    int items;           // of all persistent blocks
    bool longest_first;  // packed sequences start in order of decreasing length
    PrefillSpread spread;
};

}  // namespace gdn_cuda::gdn
