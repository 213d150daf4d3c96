// Configuration, shared memory and arguments of gdn/kda_own, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>
#include <gdn_cuda/kernels/gdn/kda/segments_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/window_plan.cuh>

namespace gdn_cuda::gdn {

struct KdaOwnConfig {
    DType io;

    constexpr bool operator==(const KdaOwnConfig&) const = default;

    GDN_FIELDS(io)

    // Warpgroups: loads and stores, outputs, plans, the chain.
    GDN_HOST_DEVICE constexpr ChunkedConfig block() const {
        return {.head_k = kKdaHeadK, .value_groups = 1, .inverse_groups = 2, .stages = 3, .io = io};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return block().threads(); }
};

enum class KdaOwnRows {
    outputs,     // the state's, with outputs
    addition,    // a segment's L: the state from zero, without outputs
    transition,  // its M: from the identity, with values of zero
};
// Chunks [first, last) of a sequence and head, for a tile of 64 rows. A block takes one work tile after another.
struct KdaWorkTile {
    int sequence, head, row_tile, first, last;
    KdaOwnRows rows;
    // The head's state before and after the chunks, contiguous (row, dk). nullptr: the call's initial state where they begin
    // the sequence, its final state where they end it, and in place of its final state elsewhere.
    float *before, *after;
    bool stores_state;
    int first_record;  // the first chunk's
};
// A work tile as the roles of a block take it: its chunks and tokens are counted from the block's first work tile on, so that
// stages and parities go on from work tile to work tile.
struct KdaOwnWork : ChunkedWork {
    KdaWorkTile work_tile;
    int begin;  // its first chunk; tokens.chunks: where its chunks end, 0 after the last work tile

    GDN_HOST_DEVICE constexpr bool is_none() const { return tokens.chunks == 0; }
};
// As many as roles may be apart: a work tile that is planned while loads, outputs and the chain are in three others of one
// chunk.
constexpr int kKdaOwnSlots = 4;
// A work tile is chosen once all but so many chunks of the one before are being loaded: late, as other blocks may then be free.
constexpr int kKdaPlannedAhead = 4;

template <ChunkedConfig kConfig>
struct KdaOwnerPlan {
    // A record's tiles, in its order, and values, in whose place the chunk's outputs come.
    struct Stage {
        SwizzledTile key_in[kKdaTiles], query_in[kKdaTiles];
        SwizzledTile update[kKdaTiles], scores;
        SwizzledTile value;

        // Where residuals go once K_in and Q_in have been multiplied.
        GDN_HOST_DEVICE SwizzledTile* update_residual() { return key_in; }
        GDN_HOST_DEVICE SwizzledTile* scores_residual() { return query_in; }
    };
    Stage stages[kConfig.stages];
    typename OwnerPlan<kConfig>::Fragments fragments;
    KdaFactors factors[kConfig.stages];
    KdaOwnWork works[kKdaOwnSlots];
    unsigned flags[kConfig.stages];
    alignas(4) bool by_tokens;           // the chunk's outputs come from the chain (kda/by_token.cuh)
    unsigned is_stored[kConfig.stages];  // the chunk's outputs, otherwise than by TMA from their tile
    // By stage: the record and values are there; the chain has read it, and outputs are stored; outputs are in their tile.
    unsigned long long stage_full[kConfig.stages], stage_empty[kConfig.stages], output_full[kConfig.stages];
    // A phase a chunk, full and empty: left operands; the chain's S K_in^T put into the tensor cores' queue.
    unsigned long long state_full, state_empty, products_queued, values_full, values_empty;
    // A phase a chunk with residuals: K_in and Q_in have been multiplied; residuals are there.
    unsigned long long tiles_read, residual_full;
    unsigned long long tail_full;  // values of a chunk that ends the sequence within it, a phase for each of these
    // By slot: a work tile is planned; all roles have finished it. A phase a work tile: the next one is wanted.
    unsigned long long work_full[kKdaOwnSlots], work_empty[kKdaOwnSlots], next_wanted;
    int taken[2];  // the next work tile, by turns
};

struct KdaOwnArgs {
    ChunkedArgs chunked;
    KdaWindow window;
    KdaSegments segments;
    const KdaRecord* records;  // (head, record), as KdaPrepareArgs has them
    const unsigned* flags;
    float* carried;  // states (sequence, head, dv, dk) from window to window; nullptr: final states in fp32 are
    unsigned*
        taken;  // zeros before: work tiles that blocks have taken after their first ones, in launches that do not follow and do
    int row_tiles, work_tiles;
};

}  // namespace gdn_cuda::gdn
