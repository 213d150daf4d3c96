// What kernels of the chunked form by warp MMAs share: what they keep in shared memory, for host and device. A configuration
// of theirs has head_k, key_stages, warps, io, direction, and whether it needs queries and scores: has_queries().
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>
#include <gdn_cuda/kernels/gdn/chunk_inverse.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

// A 16 x 16 block (tokens x tokens) as the sum of two 16-bit matrices: the rounded values and the rounding residuals
// (MmaLane::block_vector).
struct alignas(128) TwoPartBlock {
    unsigned char parts[2][kInverseBlock * kInverseBlock * 2];
};
static_assert(sizeof(ChunkTriangle::Block) >= sizeof(TwoPartBlock) &&
              sizeof(ChunkTriangle::Block) % alignof(TwoPartBlock) == 0);

// Scalars of each token. G: cumulative gate (log2); r: inverse norm of its key or query.
struct alignas(16) MmaFactors {
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
struct MmaWork {
    const void *key, *query, *value;  // at the sequence's first token, for the head
    void* output;
    i64 gate, beta;               // element offsets of that token's scalars
    i64 initial_slot, last_slot;  // element offsets of the sequence's state slots
    i64 checkpoints_before;       // how many checkpoints the sequences before this one have
    int length, chunks;           // the sequence's
    int sequence, head, first_row;
    int first_thread;            // 0 (MmaPartsLane::refresh)
    DType gate_type, beta_type;  // read by advance_by_token; from the arguments they would stay in registers across chunks
};

template <auto kConfig>
struct MmaPlan {
    MmaTile key[kConfig.key_stages][kConfig.key_tiles()], query[kConfig.query_tiles()];
    MmaTile value[kConfig.rows_per_block() / kMmaTileElements];  // overwritten by the output; each warp has its own columns
    alignas(TwoPartBlock) ChunkTriangle inverse;  // A, (I + A)^-1, then T in two parts, each in place of the one before it
    TwoPartBlock scores[ChunkTriangle::kBlocks];  // P; block indices as in ChunkTriangle
    MmaFactors factors;
    MmaWork work;  // in shared memory because the state needs the registers
};

// Where the block's chunk is in the sequence, and its tokens; none past the last chunk.
template <Direction kDirection>
GDN_HOST_DEVICE int chunk_in_time(const MmaWork& work, int chunk) {
    return kDirection == Direction::backward ? work.chunks - 1 - chunk : chunk;
}
template <Direction kDirection>
GDN_HOST_DEVICE int tokens_of_chunk(const MmaWork& work, int chunk) {
    if (kDirection == Direction::backward && chunk >= work.chunks) return 0;
    const int left = work.length - chunk_in_time<kDirection>(work, chunk) * kChunk;
    return left < kChunk ? left : kChunk;
}

}  // namespace gdn_cuda::gdn
