// Configuration and arguments of gdn/fold_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct FoldStatesConfig {
    int columns, rows;  // of a block; dk is at most `columns`

    constexpr bool operator==(const FoldStatesConfig&) const = default;

    GDN_FIELDS(columns, rows)

    static constexpr int kThreads = 512;
    GDN_HOST_DEVICE constexpr int slices() const { return kThreads / columns; }  // threads that share a column
    GDN_HOST_DEVICE constexpr int threads() const { return kThreads; }
};

// Matrices (part, sequence, head, row, column), whose rows are contiguous.
struct FoldedMatrices {
    const float* data;
    i64 part, sequence, head;
};

struct FoldStatesArgs {
    FoldedMatrices state;  // without parts
    float* out;            // (sequence, head, dv, dk), contiguous, or nullptr
    FoldedMatrices additions, transitions;
    float* every;  // the state after each part, in the place that its addition has among those; or nullptr
    int parts, heads, dv, dk;
    bool reverse;
};

}  // namespace gdn_cuda::gdn
