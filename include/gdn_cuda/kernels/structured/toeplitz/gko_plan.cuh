// Configuration, shared memory and arguments of structured/toeplitz_gko, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct ToeplitzGkoConfig {
    DType io;  // all operands: f32, f64, c64 or c128
    int threads;
    int slots;    // rows per thread, and columns of the matrix
    int columns;  // right-hand sides per block, including the probe

    constexpr bool operator==(const ToeplitzGkoConfig&) const = default;

    GDN_FIELDS(io, threads, slots, columns)
    GDN_HOST_DEVICE constexpr int rows() const { return threads * slots; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
    GDN_HOST_DEVICE constexpr int staged() const { return threads < 256 ? threads : 256; }
};

template <ToeplitzGkoConfig kConfig>
struct ToeplitzGkoSharedPlan {
    struct Number {
        double re, im;
    };
    struct Pivot {  // a warp's pivot candidate
        Number left[2], inverse, back, rhs[kConfig.columns];
        double square;
        int node, slot;
    };
    struct Staged {  // terms to be transformed
        Number left, right, rhs[kConfig.columns];
    };
    struct Tables {
        Number entering[kConfig.rows()];        // conjugate nodes of the identity's rows
        double cotangents[2 * kConfig.rows()];  // cot(pi t / 2 n)
    };
    // Double-buffered by step parity: one is written while the other is read.
    Pivot pivots[2][kConfig.warps()];
    unsigned keys[2][kConfig.warps()];
    Number column[2][2];  // right generators of the next step's column before this step's update
    double reduced[3][kConfig.warps()];
    union {  // used in sequence
        Staged staged[kConfig.staged()];
        Tables tables;
        Number found[kConfig.columns][kConfig.rows()];
    };
};

struct ToeplitzGkoArgs {
    BroadcastOperand column, row, right;
    i64 right_column_stride = 0;
    void *out = nullptr, *info = nullptr;  // (leading..., n, columns), contiguous; an int for each system
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, n = 0;
    i64 columns = 0, rows = 0;  // columns: without the probe; rows: systems
    double epsilon = 0;
};

}  // namespace gdn_cuda::structured
