// Configuration, shared memory and arguments of gdn/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_inverse.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

struct PrefillMmaConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int key_stages;  // chunks of keys in shared memory; 2: the next chunk is loaded during this one
    int warps;       // 4, or 8: four compute the inverse while four compute the scores
    DType io;

    constexpr bool operator==(const PrefillMmaConfig&) const = default;

    GDN_FIELDS(head_k, key_stages, warps, io)

    static constexpr int kWarpRows = 16;      // rows of the state per warp: the M of an MMA
    static constexpr int kTileElements = 64;  // elements in a 128-byte row

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 8 / warps; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kWarpRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
};

// A 16 x 16 block (tokens x tokens) as the sum of two 16-bit matrices: the rounded values and the rounding residuals. A row is
// 32 bytes; its 16-byte vector p is stored at p ^ (r / 4 % 2) for row r.
struct alignas(128) TwoPartBlock {
    unsigned char parts[2][kInverseBlock * kInverseBlock * 2];
};
static_assert(sizeof(ChunkTriangle::Block) >= sizeof(TwoPartBlock) &&
              sizeof(ChunkTriangle::Block) % alignof(TwoPartBlock) == 0);

template <PrefillMmaConfig kConfig>
struct PrefillMmaSharedPlan {
    // 64 tokens x 64 elements, 128-byte rows; 16-byte vector p of row r is stored at p ^ (r % 8).
    struct alignas(128) Tile {
        unsigned char bytes[kChunk * PrefillMmaConfig::kTileElements * 2];
    };
    // Scalars of each token. G: cumulative gate (log2); r: inverse norm of its key or query.
    struct alignas(16) Factors {
        float gate[kChunk];         // G
        float column[kChunk];       // G - log2(r)
        float beta[kChunk];         // scales a column of the inverse
        float key_row[kChunk];      // beta r
        float query_row[kChunk];    // scale r
        float key_state[kChunk];    // exp(G) r: scales S k^T
        float query_state[kChunk];  // scale exp(G) r
        float update[kChunk];       // exp(G_end - G) r
        float decay;                // exp(G_end)
        bool resets;                // some token's gate is a reset (kResetGateLog2)
    };
    // A block's work: a sequence, a value head, some rows of its state.
    struct Work {
        const void *key, *query, *value;  // at the sequence's first token, for the head
        void* output;
        i64 gate, beta;               // element offsets of that token's scalars
        i64 initial_slot, last_slot;  // element offsets of the sequence's state slots
        i64 checkpoints_before;       // how many checkpoints the sequences before this one have
        int length, chunks;           // the sequence's
        int sequence, head, first_row;
        int first_thread;            // 0 (MmaLane::refresh)
        DType gate_type, beta_type;  // read by advance_by_token; from the arguments they would stay in registers across chunks
    };

    Tile key[kConfig.key_stages][kConfig.key_tiles()], query[kConfig.key_tiles()];
    Tile value[kConfig.rows_per_block() /
               PrefillMmaConfig::kTileElements];  // overwritten by the output; each warp has its own columns
    alignas(TwoPartBlock) ChunkTriangle inverse;  // A, (I + A)^-1, then T in two parts, each in place of the one before it
    TwoPartBlock scores[ChunkTriangle::kBlocks];  // P; block indices as in ChunkTriangle
    Factors factors;
    Work work;  // in shared memory because the state needs the registers
};

struct PrefillMmaArgs {
    GdnCall recurrence;
    DType state;
};

}  // namespace gdn_cuda::gdn
