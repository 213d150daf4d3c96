// Configuration, shared memory and arguments of structured/toeplitz_generators, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct ToeplitzGeneratorsConfig {
    static constexpr int kThreads = 256, kParts = 4, kRows = kThreads / kParts, kColumns = 2;
    DType io;  // f32, f64, c64 or c128

    constexpr bool operator==(const ToeplitzGeneratorsConfig&) const = default;

    GDN_FIELDS(io)
};

template <ToeplitzGeneratorsConfig kConfig>
struct ToeplitzGeneratorsSharedPlan {
    struct Number {
        double re, im;
    };
    struct Sums {  // terms, or their sums
        Number left, right, rhs[kConfig.kColumns];
    };
    Sums staged[kConfig.kThreads], sums[kConfig.kParts][kConfig.kRows];
    double reduced[3][kConfig.kThreads / 32];
};

struct ToeplitzGeneratorsArgs {
    BroadcastOperand column, row, input;  // input: right-hand sides
    i64 input_column_stride = 0;
    // (systems, 2, n) twice, (systems, columns + 1, n), all c128; (systems, 2) doubles: the power of two that scales T, and a
    // norm of the scaled T.
    void *left = nullptr, *right = nullptr, *rhs = nullptr, *scales = nullptr;
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, n = 0;
    i64 columns = 0, rows = 0;  // columns: without the probe; rows: systems
};

}  // namespace gdn_cuda::structured
