// A block's work and the arguments of ssd/prefill and ssd/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

namespace gdn_cuda {

enum class Place;  // common/state_slots.cuh, which is for devices alone

namespace ssd {

constexpr int kTileRows = 64;      // channels of a head that four warps own: a row tile
constexpr int kTileThreads = 128;  // those of a row tile
constexpr int kWarpRows = 16;      // a warp's of them
constexpr int kMostRowTiles = 2;
constexpr int kShortestSegment = 8;  // chunks

// The head of a row tile, the tile's first channel, and the first of the block's tiles of this head, whose M and factors all of
// them share.
struct SsdRowTile {
    int head, first_row, scores;
};

// What a block has to do: some row tiles of heads of a group, of one segment of a sequence. Kept out of registers.
//
// Its first steps have no outputs: they sum a segment, for the state after it from zeros, which later segments need.
struct SsdWork {
    int pass, sequence, batch, group;
    int first_tile, tiles;  // counted from those of the first head
    SsdRowTile row_tiles[kMostRowTiles];
    int start, length;            // of the sequence, in tokens
    int segment, segments;        // the sequence's
    int first_chunk;              // of the segment
    int summed;                   // the segment whose state the first steps yield: its own, or of two the one before
    int first_summed;             // that one's first chunk
    int steps, first_own;         // a step is a chunk; those from `first_own` on are the segment's
    bool has_outputs;             // from then on
    int last_chunk;               // of the second pass, which begins with it
    i64 chunks_before;            // of the sequences before, in chunk_states
    Place place;                  // whether the sequence is computed
    i64 initial_slot, last_slot;  // of the states before and after it; negative: zeros, and none

    GDN_HOST_DEVICE bool outputs_at(int step) const { return has_outputs && step >= first_own; }
    GDN_HOST_DEVICE int chunk_at(int step) const {
        const int chunk = step < first_own ? first_summed + step : first_chunk + step - first_own;
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

// States of sequences, or in slots of a pool. Strides in elements; a head's channels and states are contiguous.
struct SsdStates {
    void* data = nullptr;
    DType type = DType::f32;  // or bf16 or f16
    i64 slot = 0, head = 0;
};

// The chunks of a call that reports states, one sequence's after another's, and the first of what each sequence has of
// everything, (sequences + 1). Without data a sequence's chunks begin at its multiples of 64 tokens.
struct SsdChunkTable {
    const SsdChunk* chunks = nullptr;
    const int *first = nullptr, *first_row = nullptr, *first_before = nullptr;
};

// What a pass over a sequence's chunks takes into the state.
struct SsdPass {
    TensorMap x, B;                // (element, head or group, token, batch)
    SsdStates initial, last;       // without data: zeros, and none
    void* chunk_states = nullptr;  // (chunks, heads, channels, states) in x's dtype: the state before each chunk; may be null
    TensorMap chunk_tiles;         // the same, kWarpRows channels a tile
};

struct SsdArgs {
    // One, or two at once, the second from the last chunk to the first, as gradients need it:
    // E <- exp(G_C) E + (exp(G) x)^T B is the gradient of the state if x is the outputs' and B is C.
    SsdPass passes[2];
    int pass_count = 1;
    TensorMap z, C, out;                // as x
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
    SsdChunkTable table;
    SsdStates checkpoints, states_before;  // by row; may be absent
    bool states_only = false;              // no outputs
    float* decay = nullptr;                // then, if not null: (sequences, heads), exp of the sum of δA
};

}  // namespace ssd
}  // namespace gdn_cuda
