// Configuration and shared memory of gdn/seq_state_update, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_tiles.cuh>

namespace gdn_cuda::gdn {

struct SeqStateUpdateConfig {
    int head_k;    // the largest key dimension the tiles hold: 64, 128 or 256
    int teams;     // of two warps with 16 value dimensions
    int stages;    // chunks on their way through shared memory
    bool aligned;  // rows start on 16 bytes

    constexpr bool operator==(const SeqStateUpdateConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("teams", teams);
        visit("stages", stages);
        visit("aligned", aligned);
    }

    constexpr int threads() const { return teams * 64; }
    constexpr int rows_per_block() const { return teams * 16; }  // of the state
    constexpr int blocks_per_multiprocessor() const { return head_k <= 64 ? 3 : head_k <= 128 ? 2 : 1; }
};

// What a block does. In shared memory, read anew each time: registers are for the state.
struct SequenceWork {
    const void *w, *key;  // of the first token
    void* value;          // from the block's value dimensions on
    const float* gate;    // or nullptr
    i64 first_chunk;      // among the chunks of all sequences
    int length, chunks;   // of the sequence
    int sequence, head;
    int first_row;  // of the state
};

template <SeqStateUpdateConfig kConfig>
struct SeqStateUpdateSharedPlan {
    ChunkTile<kConfig.head_k> w[kConfig.stages], key[kConfig.stages];
    ChunkTile<kConfig.rows_per_block()> value[kConfig.stages];  // u, then v'
    // Between the warps of a team: products for 16 bytes a lane, four times, then exp(G_C - G) v', for each side.
    alignas(16) unsigned exchange[kConfig.teams][2][4][32][4];
    float gate[kConfig.stages][kChunk];
    float kept[kConfig.teams][kChunk];  // exp(G_C - G)
    SequenceWork work;
};

}  // namespace gdn_cuda::gdn
