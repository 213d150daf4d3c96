// Configuration, shared memory and arguments of structured/toeplitz_gko, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::structured {

struct ToeplitzGkoConfig {
    int threads;
    int slots;    // rows of a thread, and columns of the matrix
    int columns;  // right-hand sides of a block

    constexpr bool operator==(const ToeplitzGkoConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("threads", threads);
        visit("slots", slots);
        visit("columns", columns);
    }
    GDN_HOST_DEVICE constexpr int rows() const { return threads * slots; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
};

// What threads tell each other in a step of the elimination.
template <ToeplitzGkoConfig kConfig>
struct ToeplitzGkoSharedPlan {
    struct Number {
        double re, im;
    };
    struct Pivot {  // a warp's
        Number left[2], inverse, back, numbers[kConfig.columns];
        double square;
        int node, slot;
    };
    // Of even and of odd steps: one is written while the other is read.
    Pivot pivots[2][kConfig.warps()];
    unsigned keys[2][kConfig.warps()];
    Number column[2][2];                    // right generators of the next step's column before this step's update
    Number entering[kConfig.rows()];        // the conjugates of the nodes of the identity's rows
    double cotangents[2 * kConfig.rows()];  // cot(pi t / 2 n)
};

struct ToeplitzGkoArgs {
    // Complex128 and contiguous: (systems, 2, n) twice, (systems, columns, n) in and out. And an int for each system.
    const void *left = nullptr, *right = nullptr, *numbers = nullptr;
    void *out = nullptr, *info = nullptr;
    int n = 0;
    i64 systems = 0, columns = 0;
};

}  // namespace gdn_cuda::structured
