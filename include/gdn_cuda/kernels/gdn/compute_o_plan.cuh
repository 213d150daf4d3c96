// Configuration and shared memory of gdn/compute_o, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_tiles.cuh>

namespace gdn_cuda::gdn {

struct ComputeOConfig {
    static constexpr int kThreads = 128;
    static constexpr int kValueColumns = 128;  // value dimensions per block

    int head_k;  // largest key dimension the tiles hold: 64, 128 or 256
    DType state;
    bool aligned;  // rows are 16-byte aligned

    constexpr bool operator==(const ComputeOConfig&) const = default;

    GDN_FIELDS(head_k, state, aligned)

    // As many blocks as registers allow: loads of fp32 states, and of single elements, keep more registers in flight.
    constexpr int blocks_per_multiprocessor() const {
        if (head_k > 128) return 1;
        if (!aligned) return head_k > 64 ? 2 : 3;
        return state == DType::bf16 ? 4 : 3;
    }
};

template <ComputeOConfig kConfig>
struct ComputeOSharedPlan {
    ChunkTile<kConfig.head_k> query;
    union {
        ChunkTile<kConfig.head_k> key;
        ChunkTile<kChunk> scores;  // (q.k) exp(G_i - G_j) up to the diagonal
    };
    ChunkTile<kConfig.kValueColumns> value;  // v'
    float gate[kChunk], kept[kChunk];        // G, exp(G)
    // A bit for each token: whether its own gate is a reset, and, in chunks with resets, whether some of its v' are not finite.
    unsigned resets[kChunk / 32], nonfinite[kChunk / 32];
};

}  // namespace gdn_cuda::gdn
