// Configuration, shared memory and arguments of gdn/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_inverse.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

struct PrefillMmaConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int key_stages;  // key chunks in shared memory; 2: the next one loads while this one is used
    int warps;       // 4, or 8: four compute the inverse while four compute the scores
    DType io;

    constexpr bool operator==(const PrefillMmaConfig&) const = default;

    GDN_FIELDS(head_k, key_stages, warps, io)

    static constexpr int kWarpRows = 16;      // of the state: the M of an MMA
    static constexpr int kTileElements = 64;  // elements in a 128-byte row

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 8 / warps; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kWarpRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
};

// A 16 x 16 block over tokens as the sum of two 16-bit matrices: rounded value and rounding residual. Rows of 32 bytes; piece p
// of row r lies at p ^ (r / 4 % 2).
struct alignas(128) TwoPartBlock {
    unsigned char parts[2][kInverseBlock * kInverseBlock * 2];
};
static_assert(sizeof(ChunkTriangle::Block) >= sizeof(TwoPartBlock) &&
              sizeof(ChunkTriangle::Block) % alignof(TwoPartBlock) == 0);

template <PrefillMmaConfig kConfig>
struct PrefillMmaSharedPlan {
    // 64 tokens x 64 elements, 128-byte rows; 16-byte piece p of row r lies at p ^ (r % 8).
    struct alignas(128) Tile {
        unsigned char bytes[kChunk * PrefillMmaConfig::kTileElements * 2];
    };
    // Per-token scalars; G: cumulative gates (log2), r: inverse norms of keys and queries.
    struct alignas(16) Factors {
        float gate[kChunk];            // G
        float column[kChunk];          // G - log2(r)
        float beta[kChunk];            // scales a column of the inverse
        float row_of_key[kChunk];      // beta r
        float row_of_query[kChunk];    // scale r
        float state_of_key[kChunk];    // exp(G) r: scales S k^T
        float state_of_query[kChunk];  // scale exp(G) r
        float update[kChunk];          // exp(G_end - G) r
        float decay;                   // exp(G_end)
        bool resets;                   // some token's gate is a reset (kResetGateLog2)
    };
    // One block's work: a sequence, a value head, some rows of its state.
    struct Work {
        const void *key, *query, *value;  // at the sequence's first token, for the head
        void* output;
        i64 gate, beta;               // element offsets of that token
        i64 initial_slot, last_slot;  // element offsets of the sequence's state slots
        i64 checkpoints_before;       // of the sequences packed before
        int length, chunks;           // of the sequence
        int sequence, head, first_row;
        int first_thread;            // 0
        DType gate_type, beta_type;  // here for a rare path: held in registers they would stay across chunks
    };

    Tile key[kConfig.key_stages][kConfig.key_tiles()], query[kConfig.key_tiles()];
    Tile value[kConfig.rows_per_block() / PrefillMmaConfig::kTileElements];  // then the output; each warp has its own columns
    alignas(TwoPartBlock) ChunkTriangle inverse;  // (I + A)^-1, then times diag(beta), in two parts in place
    TwoPartBlock scores[ChunkTriangle::kBlocks];  // q k^T, decayed; block indices as in the inverse
    Factors factors;
    Work work;  // kept out of registers
};

struct PrefillMmaArgs {
    GdnCall recurrence;
    DType state;
};

}  // namespace gdn_cuda::gdn
