// Configuration, shared memory and arguments of structured/toeplitz_eliminate, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::structured {

struct ToeplitzEliminateConfig {
    int blocks;   // of a cluster
    int threads;  // of a block that have rows; as many again have columns
    int slots;    // rows or columns of a thread
    int columns;  // right-hand sides of a cluster

    constexpr bool operator==(const ToeplitzEliminateConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("blocks", blocks);
        visit("threads", threads);
        visit("slots", slots);
        visit("columns", columns);
    }
    GDN_HOST_DEVICE constexpr int rows() const { return blocks * threads * slots; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
};

template <ToeplitzEliminateConfig kConfig>
struct ToeplitzEliminateSharedPlan {
    struct Number {
        double re, im;
    };
    struct alignas(16) Proposal {  // of a block: its best row to be the pivot's
        unsigned key;              // 0 where it has none
        int node, place, fails;
        Number left[2], back, numbers[kConfig.columns];  // all but back divided by the pivot
    };
    struct alignas(16) Column {  // the next step's, before this step's update
        Number right[2], back;
    };
    struct Inbox {
        Proposal proposals[kConfig.blocks];
        Column column;
    };
    // Of even and of odd steps: one is written, by other blocks, while the other is read.
    Inbox inboxes[2];
    struct {
        Proposal proposal;
        Column columns[kConfig.warps()];
    } sent;
    unsigned long long arrived[2];
    unsigned keys[2][kConfig.warps()];
    double cotangents[kConfig.rows() + 1];  // cot(pi t / 2 n)
};

// Contiguous: left and right (systems, 2, n), numbers and found (systems, columns, n), all c128; info (systems), ints.
struct ToeplitzEliminateArgs {
    const void *left = nullptr, *right = nullptr, *numbers = nullptr;
    void *found = nullptr, *info = nullptr;
    int n = 0, columns = 0;
};

}  // namespace gdn_cuda::structured
