// Configuration and arguments of common/uncovered_zeros, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::common {

struct UncoveredZerosConfig {
    int tokens;  // that a block looks at

    constexpr bool operator==(const UncoveredZerosConfig&) const = default;
    static constexpr int kThreads = 128;
    GDN_HOST_DEVICE constexpr int words() const { return tokens / 32; }

    GDN_FIELDS(tokens)
};

// What a tensor has for each token: `rows` runs of `bytes` bytes. Strides in bytes.
struct TokenRows {
    void* data = nullptr;
    i64 token = 0, row = 0;
    int rows = 0, bytes = 0;
};

struct UncoveredZerosArgs {
    static constexpr int kMost = 6;
    TokenRows tensors[kMost];
    int count = 0;
    Tagged cu_seqlens;
    int sequences = 0, tokens = 0;
};

}  // namespace gdn_cuda::common
