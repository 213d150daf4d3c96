// Configuration, shared memory and arguments of structured/toeplitz_eliminate, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::structured {

struct ToeplitzEliminateConfig {
    int blocks;   // blocks per cluster
    int threads;  // threads per block that hold rows; the same number hold columns
    int slots;    // rows (or columns) per thread
    int columns;  // right-hand sides per cluster

    constexpr bool operator==(const ToeplitzEliminateConfig&) const = default;

    GDN_FIELDS(blocks, threads, slots, columns)
    GDN_HOST_DEVICE constexpr int rows() const { return blocks * threads * slots; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
};

template <ToeplitzEliminateConfig kConfig>
struct ToeplitzEliminateSharedPlan {
    struct Number {
        double re, im;
    };
    struct alignas(16) Candidate {  // a block's pivot candidate
        unsigned key;               // 0 if it has none
        int node, place, fails;
        Number left[2], back, rhs[kConfig.columns];  // all but `back` are divided by the pivot
    };
    struct alignas(16) Column {  // the next step's column, before this step's update
        Number right[2], back;
    };
    struct Inbox {
        Candidate candidates[kConfig.blocks];
        Column column;
    };
    // Double-buffered by step parity: other blocks write one while this block reads the other.
    Inbox inboxes[2];
    struct {
        Candidate candidate;
        Column columns[kConfig.warps()];
    } outbox;
    unsigned long long inbox_mbarriers[2];
    unsigned keys[2][kConfig.warps()];
    double cotangents[kConfig.rows() + 1];  // cot(pi t / 2 n)
};

// Contiguous: left and right (systems, 2, n), rhs and found (systems, columns, n), all c128; info (systems), ints.
struct ToeplitzEliminateArgs {
    const void *left = nullptr, *right = nullptr, *rhs = nullptr;
    void *found = nullptr, *info = nullptr;
    int n = 0, columns = 0;
};

}  // namespace gdn_cuda::structured
