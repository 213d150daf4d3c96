// Configuration and arguments of gdn/chunk_gates, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

struct ChunkGatesConfig {
    int warps;

    constexpr bool operator==(const ChunkGatesConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct ChunkGatesArgs {
    Scalars gate, beta;  // an absent gate is 0, an absent beta 1
    GateForms forms;
    Tagged A_log, dt_bias;
    i64 sequences, tokens;  // a padded batch; packed sequences are one row of all tokens
    int heads;
    float *log_decay, *beta_out;  // (sequences, tokens, heads), contiguous
};

}  // namespace gdn_cuda::gdn
