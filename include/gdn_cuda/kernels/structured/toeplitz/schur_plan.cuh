// Configuration, shared memory and arguments of structured/toeplitz_schur, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct ToeplitzSchurConfig {
    DType io;  // f32 or f64
    int threads;
    int slots;    // rows per thread
    int columns;  // right-hand sides per block, besides the probe

    constexpr bool operator==(const ToeplitzSchurConfig&) const = default;

    GDN_FIELDS(io, threads, slots, columns)
    GDN_HOST_DEVICE constexpr int rows() const { return threads * slots; }
    GDN_HOST_DEVICE constexpr int rhs_count() const { return columns + 1; }
};

template <ToeplitzSchurConfig kConfig>
struct ToeplitzSchurSharedPlan {
    // Written by the thread of the next row. Double-buffered like `shifted`: one is written while the other is read.
    struct NextRow {
        double reflection, rhs[kConfig.rhs_count()];
    };
    double sums[kConfig.threads / 32], largest[kConfig.threads / 32];  // per warp, for the final reductions
    NextRow next_row[2];
    double shifted[2][kConfig.rows() + 1];  // row i at index i + 1; 0 above the first
};

struct ToeplitzSchurArgs {
    BroadcastOperand column, right;
    i64 right_column_stride = 0;
    void *out = nullptr, *info = nullptr;  // (leading..., n, columns), contiguous; an int for each system
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, n = 0;
    i64 columns = 0, rows = 0;  // rows: systems
    double epsilon = 0;
};

}  // namespace gdn_cuda::structured
