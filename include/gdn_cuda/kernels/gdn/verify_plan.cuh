// Configuration, shared memory and arguments of gdn/verify, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

struct VerifyConfig {
    int head_k;  // exactly the tensors': 64, 96, 128, 192 or 256
    DType io;
    DType state;
    int rows_per_thread;  // per step; they share a token's loads
    int steps;            // of rows per block, all in flight at once
    int warps;
    static constexpr bool exact_k = true, aligned = true;

    constexpr bool operator==(const VerifyConfig&) const = default;

    GDN_FIELDS(head_k, io, state, rows_per_thread, steps, warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes * rows_per_thread; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return rows_per_step() * steps; }
};

template <VerifyConfig kConfig>
struct VerifySharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    Vector state[kConfig.steps][kConfig.rows_per_thread][kConfig.layout().vectors()][kConfig.threads()];
    TokenBatch<kConfig> tokens;
};

}  // namespace gdn_cuda::gdn
