// Configuration and arguments of gdn/chunk_gates_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

struct ChunkGatesBackwardConfig {
    int warps;

    constexpr bool operator==(const ChunkGatesBackwardConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct ChunkGatesBackwardArgs {
    Scalars gate, beta;  // as the call has them
    GateForms forms;
    Tagged A_log, dt_bias;
    const float *log_decay_gradient, *beta_gradient;  // (sequences, tokens, heads), contiguous, as all that is written
    Tagged gate_to, beta_to;                          // absent where the gate or beta is
    float* sums;            // (2, block, heads): of A_log's and dt_bias's gradients over the tokens of a block; or nullptr
    i64 sequences, tokens;  // a padded batch; packed sequences are one row of all tokens
    int heads;
    int lanes;  // threads that have different heads, a power of two
    i64 tokens_of_block;
};

}  // namespace gdn_cuda::gdn
