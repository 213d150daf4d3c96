// Configuration and shared memory of gdn/seq_state_update, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

struct SeqStateUpdateConfig {
    int head_k;          // the largest key dimension the tiles hold: 128 or 256
    int rows_per_block;  // value dimensions
    int threads;

    constexpr bool operator==(const SeqStateUpdateConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("rows_per_block", rows_per_block);
        visit("threads", threads);
    }
};

template <SeqStateUpdateConfig kConfig>
struct SeqStateUpdateSharedPlan {
    float key[kChunk][kConfig.head_k + 1];  // w, then k; + 1: rows start in different banks
    float state[kConfig.rows_per_block][kConfig.head_k + 1];
    float value[kChunk][kConfig.rows_per_block + 1];  // v'
    float gate[kChunk];
};

}  // namespace gdn_cuda::gdn
