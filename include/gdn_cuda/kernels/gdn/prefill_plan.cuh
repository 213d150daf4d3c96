// Configuration, shared memory and arguments of gdn/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

constexpr int kWarpgroup = 128;      // threads
constexpr int kValueRows = 64;       // of the state, a warpgroup
constexpr int kTileElements = 64;    // of a 128-byte row
constexpr int kShortestSegment = 8;  // chunks

// Elements from a token's gate or beta to the next one's: the kernel counts their bytes in 32 bits.
constexpr i64 kMostBetweenScalars = (i64{1} << 31) / 8;

struct PrefillConfig {
    int head_k;          // 64, 96 or 128; shorter keys are filled with zeros
    int value_groups;    // warpgroups with 64 rows of the state each
    int inverse_groups;  // warpgroups that invert I + A, taking turns at chunks
    int stages;          // chunks on their way through shared memory
    DType io;

    constexpr bool operator==(const PrefillConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("value_groups", value_groups);
        visit("inverse_groups", inverse_groups);
        visit("stages", stages);
        visit("io", io);
    }

    // Warpgroups in order: one that brings chunks and forms their scores, those that invert, those that own the state.
    GDN_HOST_DEVICE constexpr int first_value_group() const { return 1 + inverse_groups; }
    GDN_HOST_DEVICE constexpr int threads() const { return (first_value_group() + value_groups) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return value_groups * kValueRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
    // What the threads of a block share is given out anew: the state's owners need most.
    GDN_HOST_DEVICE constexpr int scores_registers() const { return value_groups == 2 ? 64 : 80; }
    GDN_HOST_DEVICE constexpr int inverse_registers() const { return value_groups == 2 ? 64 : 112; }
    GDN_HOST_DEVICE constexpr int value_registers() const { return value_groups == 2 ? 192 : 208; }
};

// Similar keys with large beta make entries of (I + A)^-1 that cancel: rounded to 16 bits once, they, V' and P would be most of
// the error. Chunks with an entry beyond this off the diagonal take all three in two parts (docs/numerics.md).
constexpr float kCancels = 0.5f;

// The decay of a chunk with a gate whose exponential is 0: -0, told apart from a product that underflows.
constexpr float kResets = -0.f;

// 64 tokens and 64 elements, 128-byte rows, swizzled (shared.cuh).
struct alignas(1024) PrefillTile {
    unsigned char bytes[kChunk * kTileElements * 2];
};

// What a pass makes. A segment makes S M + L of a state S.
enum class PrefillMakes {
    transfer,  // rows of M
    summary,   // L
    link,      // the state before the segment: S M + L of the segment before
    outputs,
};
constexpr int kMostPasses = 5;  // M's rows may take two

// One pass of a block: a segment of a sequence with what comes before it, a value head, some rows of its state. Tokens and
// chunks are counted from the first that the pass takes. A link takes M instead, 64 rows of it as a chunk's keys.
struct PrefillWork {
    PrefillMakes makes;
    i64 start, initial_slot, last_slot;  // the first token; elements from the first slot to the sequence's
    int length, chunks, silent;          // a link has no chunks; chunks before the segment, or of a summary, no outputs
    int tokens_before;                   // of the sequence
    bool begins, ends;                   // the sequence
    i64 link;                            // this segment's among all
    i64 from, to;                        // whose states are the first and the last; -1: the caller's
    int readers;                         // of the caller's first state, blocks of this tile up to this one
    int sequence, head, key_head, first_row, rows;
    int first_value;         // where rows of values begin: for M past the last, where zeros come from
    i64 checkpoints_before;  // those of the sequences packed before
};

// From segments to the next ones: (sequence, head, segment but the last, ...), with room for whole blocks' rows and columns.
struct PrefillLinks {
    float* states;           // L (dv, dk), then the state after the segment
    void* transfers;         // M (dk, 2, dk): rounded to bf16, and what rounding left of it
    unsigned* have_summary;  // how many value groups have written their rows of M and L,
    unsigned* have_state;    // and of each tile of rows, how many have written the state
    int count;               // of a head; 0: a head that remembers is not split
};

template <PrefillConfig kConfig>
struct PrefillSharedPlan {
    struct Stage {
        PrefillTile key[kConfig.key_tiles()], query[kConfig.key_tiles()], value[kConfig.value_groups];
    };
    // What helpers make of a chunk; zero above the diagonal.
    struct Matrices {
        PrefillTile inverse, inverse_rest;  // (I + A)^-1 diag(beta), and what its rounding left where that matters
        PrefillTile scores;                 // q k^T, decayed and masked
    };
    struct alignas(4) Cancelling {
        bool column[4];
    };
    // Scalars of a chunk's tokens, G the cumulated gates (in units of ln 2), r the inverse norms of keys and queries.
    struct alignas(16) Factors {
        float gate[kChunk], beta[kChunk];
        // Exponents: products of two keys are multiplied by 2^(row - column), those of a query and a key too.
        float key_row[kChunk], query_row[kChunk], column[kChunk];
        float of_key[kChunk];     // exp(G) r: what the state has of a key when its token comes
        float of_query[kChunk];   // scale exp(G) r
        float of_update[kChunk];  // exp(G_end - G) r
    };
    // A 16 x 16 block of -A, then of the inverse on the diagonal: halves of rows 2 and 3 of every 4 change places, so that four
    // rows at eight columns are in 32 banks.
    struct alignas(16) Block {
        static constexpr int kEightRows = 8 * 16;
        float numbers[16 * 16];

        GDN_HOST_DEVICE static constexpr int at(int row, int column) { return row * 16 + (column ^ (row >> 1 & 1) * 8); }
    };
    struct InverseScratch {
        Block blocks[10];  // of the lower triangle, row by row
    };
    Stage stages[kConfig.stages];
    Matrices matrices[kConfig.stages - 1];
    PrefillTile output[kConfig.value_groups];
    InverseScratch inverse[kConfig.inverse_groups];
    // Whether an inverse has entries that cancel, by columns of blocks: two parts of them, and of V', then.
    Cancelling cancels[kConfig.stages - 1];
    Factors factors[kConfig.stages];
    float decay[kConfig.stages];                // exp(G_end) of a chunk, or kResets
    PrefillWork work, passes[kMostPasses - 1];  // not in registers: they are short; passes come last to first
    int passes_to_come;
    unsigned long long loaded[kConfig.stages], factored[kConfig.stages], ready[kConfig.stages];
    unsigned long long done[kConfig.stages];            // by the state's owners: the stage is free, and so are the matrices
    unsigned long long walked[kConfig.inverse_groups];  // by those who invert: blocks of a chunk have been read
    unsigned long long linked;                          // M is there
};

// Which calls a launch takes. A head *remembers* if its state is still needed far behind a border between segments, else it
// *forgets* (prefill_segments.cuh).
enum class PrefillTakes {
    every_call,
    if_all_forget,     // each sequence in segments
    if_one_remembers,  // each sequence whole
};

struct PrefillArgs {
    TensorMap query, key, value, output;  // (d, head, token, batch)
    TensorMap transfers;                  // (column, part, row, link)
    RecurrentArgs recurrence;
    DType state;
    int segments;  // that a head which forgets is split into
    int reach;     // chunks before a segment that are sooner walked than the sequence is, unsplit or by links
    PrefillTakes takes;
    PrefillLinks links;
    unsigned* readers;  // zeros, one a sequence, head and tile of rows, where states are updated in place; else nullptr
};

}  // namespace gdn_cuda::gdn
