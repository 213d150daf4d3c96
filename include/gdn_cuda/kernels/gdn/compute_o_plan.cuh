// Configuration and shared memory of gdn/compute_o, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

struct ComputeOConfig {
    int head_k;  // the largest key dimension the tiles hold: 128 or 256
    int threads;

    constexpr bool operator==(const ComputeOConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("threads", threads);
    }
};

template <ComputeOConfig kConfig>
struct ComputeOSharedPlan {
    float query[kChunk][kConfig.head_k + 1];  // + 1: rows start in different banks
    float key[kChunk][kConfig.head_k + 1];
    float scores[kChunk][kChunk + 1];  // (q.k) exp(G_i - G_j), lower triangle with the diagonal
    float gate[kChunk];
};

}  // namespace gdn_cuda::gdn
