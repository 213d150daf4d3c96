// Configuration and shared memory of gdn/compute_u_w, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_inverse.cuh>
#include <gdn_cuda/kernels/gdn/chunk_tiles.cuh>

namespace gdn_cuda::gdn {

struct ComputeUWConfig {
    static constexpr int kThreads = 128;       // one warp per 16 tokens
    static constexpr int kValueColumns = 128;  // value dimensions in shared memory at a time

    int head_k;    // largest key dimension the tile holds: 64, 128 or 256
    bool aligned;  // rows are 16-byte aligned

    constexpr bool operator==(const ComputeUWConfig&) const = default;

    GDN_FIELDS(head_k, aligned)
};

template <ComputeUWConfig kConfig>
struct ComputeUWSharedPlan {
    ChunkTile<kConfig.head_k> key;
    ChunkTile<kConfig.kValueColumns> value;
    ChunkTriangle triangle;  // A below the diagonal, then T
    float gate[kChunk];
    float beta[kChunk];
    float decayed_beta[kChunk];  // beta exp(G)
};

}  // namespace gdn_cuda::gdn
