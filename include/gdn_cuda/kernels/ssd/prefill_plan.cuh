// Configuration, shared memory and arguments of ssd/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>
#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

namespace gdn_cuda {

enum class Place;  // common/state_slots.cuh, which is for devices alone

namespace ssd {

constexpr int kTileRows = 64;  // channels of a head that a warpgroup owns: a row tile
constexpr int kMostRowTiles = 2;
constexpr int kSharedBytes = 227 * 1024;
constexpr int kFactorSlots = 4;

// C is loaded in blocks of 8 tokens, block b to place_of_block(b), so that the warps of a product with C on the left have
// blocks w and 7 - w: of a triangle as much each. Outputs and M have their tokens i in this order too, but not those j of B and
// x.
constexpr int kBlockTokens = 8;
GDN_HOST_DEVICE constexpr int place_of_block(int block) {
    return block < 4 ? 2 * block : 15 - 2 * block;
}

struct SsdConfig {
    DType io;
    int states;     // 64, 128 or 256; fewer are padded with zeros
    int row_tiles;  // of a block, of heads of one group
    bool gated;     // out is multiplied by silu(z)

    constexpr bool operator==(const SsdConfig&) const = default;

    GDN_FIELDS(io, states, row_tiles, gated)

    // Two row tiles of 256 states leave no registers for an inputs role: there the scores role has its work.
    GDN_HOST_DEVICE constexpr bool has_inputs_role() const { return states < 256 || row_tiles == 1; }
    // Warpgroup order: inputs, scores, then one for each row tile.
    GDN_HOST_DEVICE constexpr int scores_group() const { return has_inputs_role() ? 1 : 0; }
    GDN_HOST_DEVICE constexpr int warpgroups() const { return scores_group() + 1 + row_tiles; }
    GDN_HOST_DEVICE constexpr int threads() const { return warpgroups() * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int state_tiles() const { return states / kTileElements; }
    // A stage holds a chunk's C and B, and x and z of each row tile.
    GDN_HOST_DEVICE constexpr int stage_tiles(int rows) const { return 2 * state_tiles() + rows * (gated ? 2 : 1); }
    GDN_HOST_DEVICE constexpr int slots() const { return gated && states >= 128 ? 1 : 2; }
    GDN_HOST_DEVICE constexpr int stages() const {
        constexpr int kFactors = (7 * kChunk + 4 + 2) * 4, kRest = 1024;
        const int left =
            kSharedBytes - kRest - row_tiles * (slots() * static_cast<int>(sizeof(SwizzledTile)) + kFactorSlots * kFactors);
        const int fit = left / (stage_tiles(row_tiles) * static_cast<int>(sizeof(SwizzledTile)));
        return fit < 4 ? fit : 4;
    }
    // setmaxnreg per role. What threads have at the launch is all there is: a role that asked for more would wait forever.
    GDN_HOST_DEVICE constexpr int inputs_registers() const { return 24; }
    GDN_HOST_DEVICE constexpr int scores_registers() const { return states == 128 ? 72 : 88; }
    GDN_HOST_DEVICE constexpr int row_registers() const { return row_tiles == 1 ? 240 : states == 64 ? 200 : 208; }
    GDN_HOST_DEVICE constexpr bool fits_registers() const {
        const int asked = (has_inputs_role() ? inputs_registers() : 0) + scores_registers() + row_tiles * row_registers();
        return asked <= 65536 / threads() / 8 * 8 * warpgroups();
    }
};

constexpr int kShortestSegment = 8;  // chunks

// The head of a row tile, the tile's first channel, and the first of the block's tiles of this head, whose M and factors all of
// them share.
struct SsdRowTile {
    int head, first_row, scores;
};

// What a block has to do: some row tiles of heads of a group, of one segment of a sequence. Kept out of registers.
//
// A segment that others follow is taken twice: first for the state after it from zeros, without outputs, which those need.
struct SsdWork {
    int pass, sequence, batch, group;
    int first_tile, tiles;  // counted from those of the first head
    SsdRowTile row_tiles[kMostRowTiles];
    int start, length;      // of the sequence, in tokens
    int segment, segments;  // the sequence's
    int first_chunk;        // of the segment
    int steps, first_own;   // a step is a chunk; from `first_own` on again from `first_chunk` on, with all that comes before
    bool has_outputs;       // from then on
    int last_chunk;         // of the second pass, which begins with it
    i64 chunks_before;      // of the sequences before, in chunk_states
    Place place;            // whether the sequence is computed
    i64 initial_slot, last_slot;  // of the states before and after it; negative: zeros, and none

    GDN_HOST_DEVICE bool outputs_at(int step) const { return has_outputs && step >= first_own; }
    GDN_HOST_DEVICE int chunk_at(int step) const {
        const int chunk = first_chunk + (step < first_own ? step : step - first_own);
        return pass == 0 ? chunk : last_chunk - chunk;
    }
    // How many heads the row tiles are of: two, or one of one or two tiles.
    GDN_HOST_DEVICE int heads() const { return tiles > 1 && row_tiles[1].scores == 1 ? 2 : 1; }
    GDN_HOST_DEVICE bool is_last() const { return segment + 1 == segments; }
};

// Where segments hand on the states after them, from zeros; null with one segment a sequence. A row tile's elements are in the
// order of its threads.
struct SsdSegments {
    float* states = nullptr;   // (pass, sequence, segment, row tile of all heads, 64 x padded N)
    float* decays = nullptr;   // (pass, sequence, segment, row tile): exp of the sum of δA
    unsigned* done = nullptr;  // the same; zero until both are there
    unsigned* read = nullptr;  // (pass, sequence, row tile): how many segments but the last have read the initial state
    int count = 1;             // of the longest sequences
};

template <SsdConfig kConfig>
struct SsdPlan {
    static_assert(kConfig.stages() >= 2 && kConfig.fits_registers());
    struct Stage {
        SwizzledTile C[kConfig.state_tiles()];  // in the order of place_of_block
        SwizzledTile B[kConfig.state_tiles()], x[kConfig.row_tiles];
        SwizzledTile z[kConfig.gated ? kConfig.row_tiles : 1];
    };
    // Without z its tile is not there.
    static constexpr int kStageBytes = kConfig.stage_tiles(kConfig.row_tiles) * static_cast<int>(sizeof(SwizzledTile));
    // A head's values for the tokens of a chunk. G: its gates, sums of δA from the chunk's first token on, in log2.
    struct alignas(16) Factors {
        ChunkSteps steps;
        float before[kChunk];  // exp(G), of the state before the chunk in a token's output
        float after[kChunk];   // δ exp(G_end - G), of a token in the state after the chunk
        // A decay between tokens of different blocks of 16 is a product, exp(G_i - G_j) = row_i between column_j. row: from the
        // last token before i's block; column: to the last of j's block; between these two: 1 of neighbours, else
        // between[i's block + j's - 1].
        float row[kChunk], column[kChunk], between[4];
        float added[kChunk];  // column_j δ_j
    };
    // Whether a decay between two tokens may be 0; mixed: some tokens decay and some grow.
    enum class Resets : int { none, some, mixed };
    struct End {
        float decay;  // exp(G_end)
        Resets resets;
    };
    // A step uses stage (step % stages) of what is loaded, and slot (step % slots) of what is formed from it.
    alignas(1024) unsigned char stages[kConfig.stages()][kStageBytes];
    // One for each row tile; tiles of the same head use that of its first tile.
    SwizzledTile scores[kConfig.slots()][kConfig.row_tiles];  // M, its rows i in C's order; zero above the diagonal
    Factors factors[kFactorSlots][kConfig.row_tiles];
    End ends[kFactorSlots][kConfig.row_tiles];
    SsdWork work;
    // mbarriers: who arrives -> who waits.
    //     stage_full     TMA -> scores, rows
    //     stage_used     each warp of the rows has read the stage, and its outputs are in place of x -> inputs, storing
    //     stage_empty    inputs: the outputs are stored -> inputs, loading
    //     factors_full   inputs: each head's warp -> scores, rows
    //     factors_empty  each warp of the rows has read them -> inputs
    //     scores_full    scores: M, and what is past the sequence is cleared -> rows
    //     scores_empty   each warp of the rows has read them -> scores
    unsigned long long stage_full[kConfig.stages()], stage_used[kConfig.stages()], stage_empty[kConfig.stages()];
    unsigned long long factors_full[kFactorSlots], factors_empty[kFactorSlots];
    unsigned long long scores_full[kConfig.slots()], scores_empty[kConfig.slots()];
};

// States of sequences, or in slots of a pool. Strides in elements; a head's channels and states are contiguous.
struct SsdStates {
    void* data = nullptr;
    DType type = DType::f32;  // or bf16 or f16
    i64 slot = 0, head = 0;
};

// What a pass over a sequence's chunks takes into the state.
struct SsdPass {
    TensorMap x, B;                // (element, head or group, token, batch)
    SsdStates initial, last;       // without data: zeros, and none
    void* chunk_states = nullptr;  // (chunks, heads, channels, states) in x's dtype: the state before each chunk; may be null
};

struct SsdArgs {
    // One, or two at once, the second from the last chunk to the first, as gradients need it:
    // E <- exp(G_C) E + (exp(G) x)^T B is the gradient of the state if x is the outputs' and B is C.
    SsdPass passes[2];
    int pass_count = 1;
    TensorMap z, out;                   // as x
    TensorMap C;                        // the same by kBlockTokens tokens
    const ChunkSteps* steps = nullptr;  // (chunk, head), as ssd/steps stores them
    PerHead D;                          // may be absent
    Tagged cu_seqlens;
    const bool* has_initial = nullptr;  // (sequences,): whether a sequence reads its slot; nullptr: all do
    // Slots of a pool, as common/state_slots.cuh reads them; without data a sequence has its own.
    Tagged slots, accepted;  // accepted: without data, as there is no speculative decoding
    i64 slots_sequence = 0, slots_token = 0, null_slot = -1;
    int slot_count = 0, slot_steps = 1;
    Tagged last_slots;  // (sequences,), where others are written than read; one past the pool or negative is not
    int last_slot_count = 0;
    void* out_data = nullptr;  // for chunks whose tile would overwrite the next sequence's outputs, and without TMA
    i64 out_batch = 0, out_token = 0, out_head = 0;
    int sequences = 0, tokens = 0, heads = 0, groups = 0, channels = 0, states = 0;
    int tiles_of_head = 1;
    SsdSegments segments;
    bool states_only = false;  // no outputs
    float* decay = nullptr;    // then, if not null: (sequences, heads), exp of the sum of δA
};

}  // namespace ssd
}  // namespace gdn_cuda
