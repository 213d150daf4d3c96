// Configuration, shared memory and arguments of gdn/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_inverse.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

struct PrefillMmaConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are filled with zeros
    int key_stages;  // chunks of keys in shared memory: with two, the next one comes while this one is used
    int warps;       // 4, or 8: then four make the inverse while four make the scores
    DType io;

    constexpr bool operator==(const PrefillMmaConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("key_stages", key_stages);
        visit("warps", warps);
        visit("io", io);
    }

    static constexpr int kWarpRows = 16;      // of the state: those of a product
    static constexpr int kTileElements = 64;  // of a 128-byte row

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 8 / warps; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kWarpRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
};

// A 16 x 16 block of tokens x tokens as the sum of two 16-bit matrices: rounded, and what rounding left. Rows of 32 bytes;
// piece p of row r lies at p ^ (r / 4 % 2).
struct alignas(128) TwoPartBlock {
    unsigned char parts[2][kInverseBlock * kInverseBlock * 2];
};
static_assert(sizeof(ChunkTriangle::Block) >= sizeof(TwoPartBlock) &&
              sizeof(ChunkTriangle::Block) % alignof(TwoPartBlock) == 0);

template <PrefillMmaConfig kConfig>
struct PrefillMmaSharedPlan {
    // 64 tokens and 64 elements in rows of 128 bytes: 16-byte piece p of row r lies at p ^ (r % 8).
    struct alignas(128) Tile {
        unsigned char bytes[kChunk * PrefillMmaConfig::kTileElements * 2];
    };
    // Of a chunk's tokens; G are the cumulated gates, in units of ln 2, r the inverse norms of keys and queries.
    struct alignas(16) Factors {
        float gate[kChunk];            // G
        float column[kChunk];          // G - log2(r)
        float beta[kChunk];            // of a column of the inverse
        float row_of_key[kChunk];      // beta r
        float row_of_query[kChunk];    // scale r
        float state_of_key[kChunk];    // exp(G) r: what the state has of a key when its token comes
        float state_of_query[kChunk];  // scale exp(G) r
        float update[kChunk];          // exp(G_end - G) r
        float decay;                   // exp(G_end)
        bool resets;                   // some token's gate is a reset (kResetGateLog2)
    };
    // One block's work: a sequence, a value head, some rows of its state.
    struct Work {
        const void *key, *query, *value;  // the sequence's first token of the head
        void* output;
        i64 gate, beta;               // elements up to there
        i64 initial_slot, last_slot;  // and from the first slot to the sequence's
        i64 checkpoints_before;       // those of the sequences packed before
        int length, chunks;           // of the sequence
        int sequence, head, first_row;
        int first_thread;            // 0
        DType gate_type, beta_type;  // for a rare path: the compiler would keep them in registers from chunk to chunk
    };

    Tile key[kConfig.key_stages][kConfig.key_tiles()], query[kConfig.key_tiles()];
    Tile value[kConfig.rows_per_block() / PrefillMmaConfig::kTileElements];  // then the output; a warp has columns of its own
    alignas(TwoPartBlock) ChunkTriangle inverse;  // (I + A)^-1, then times diag(beta): each block as two parts in its place
    TwoPartBlock scores[ChunkTriangle::kBlocks];  // q k^T, decayed; numbered as the inverse's
    Factors factors;
    Work work;  // not in registers: they are short
};

struct PrefillMmaArgs {
    RecurrentArgs recurrence;
    DType state;
};

}  // namespace gdn_cuda::gdn
