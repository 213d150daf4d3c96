// Configuration and arguments of scan/selective_backward_sums, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveBackwardSumsConfig {
    int threads;

    constexpr bool operator==(const SelectiveBackwardSumsConfig&) const = default;

    GDN_FIELDS(threads)
};

// to[row, group, token, column] = Σ over partials of from[partial, row, group, token, column]; rows of `from` have `pitch`
// columns.
struct PartialSums {
    const float* from = nullptr;
    Coefficients to;  // the gradient; `n` and `pair` are the strides of a column
    int partials = 0, rows = 1, groups = 1, tokens = 1, columns = 1, pitch = 1;

    GDN_HOST_DEVICE constexpr i64 sums() const { return static_cast<i64>(rows) * groups * tokens * columns; }
};
struct SelectiveBackwardSumsArgs {
    static constexpr int kMost = 6;
    PartialSums each[kMost];
    int count = 0;
};

}  // namespace gdn_cuda::scan
