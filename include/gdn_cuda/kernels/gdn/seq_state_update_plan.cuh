// Configuration and shared memory of gdn/seq_state_update, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_tiles.cuh>

namespace gdn_cuda::gdn {

struct SeqStateUpdateConfig {
    int head_k;    // largest key dimension the tiles hold: 64, 128 or 256
    int teams;     // a team is two warps and has 16 value dimensions
    int stages;    // chunks in flight in shared memory
    bool aligned;  // rows are 16-byte aligned

    constexpr bool operator==(const SeqStateUpdateConfig&) const = default;

    GDN_FIELDS(head_k, teams, stages, aligned)

    constexpr int threads() const { return teams * 64; }
    constexpr int rows_per_block() const { return teams * 16; }  // rows of the state
    constexpr int blocks_per_multiprocessor() const { return head_k <= 64 ? 3 : head_k <= 128 ? 2 : 1; }
};

// A block's work. It is in shared memory because the state needs the registers.
struct SequenceWork {
    const void *w, *key;  // at the first token
    void* value;          // at the block's first value dimension
    const float* gate;    // or nullptr
    i64 first_chunk;      // its index among the chunks of all sequences
    int length, chunks;   // the sequence's
    int sequence, head;
    int first_row;  // the block's first row of the state
};

template <SeqStateUpdateConfig kConfig>
struct SeqStateUpdateSharedPlan {
    ChunkTile<kConfig.head_k> w[kConfig.stages], key[kConfig.stages];
    ChunkTile<kConfig.rows_per_block()> value[kConfig.stages];  // u, then v'
    // What the warps of a team exchange: partial sums, then exp(G_C - G) v'; 4 x 16 bytes per lane and warp.
    alignas(16) unsigned exchange[kConfig.teams][2][4][32][4];
    float gate[kConfig.stages][kChunk];
    float kept[kConfig.teams][kChunk];  // exp(G_C - G)
    SequenceWork work;
};

}  // namespace gdn_cuda::gdn
