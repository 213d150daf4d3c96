// Configuration and shared memory of gdn/compute_u_w, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

struct ComputeUWConfig {
    int head_k;   // the largest key dimension the tile holds: 128 or 256
    int threads;  // one column of the solve each

    constexpr bool operator==(const ComputeUWConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("threads", threads);
    }
};

template <ComputeUWConfig kConfig>
struct ComputeUWSharedPlan {
    float key[kChunk][kConfig.head_k + 1];  // + 1: rows start in different banks
    float a[kChunk][kChunk];                // strictly lower triangle of A
    float columns[kChunk][kConfig.threads];
    float gate[kChunk], beta[kChunk];
};

}  // namespace gdn_cuda::gdn
