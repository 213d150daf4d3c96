// Configuration, shared memory and arguments of gdn/backward_mma_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/backward/handover.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/plan.cuh>

namespace gdn_cuda::gdn {

struct BackwardStatesConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int key_stages;  // chunks of keys in shared memory; 2: the next chunk is loaded during this one
    int warps;       // 4, or 8: four compute the inverse while four compute the scores
    DType io;
    Direction direction;  // forward: states and R; backward: their gradients and dV

    constexpr bool operator==(const BackwardStatesConfig&) const = default;

    GDN_FIELDS(head_k, key_stages, warps, io, direction)

    GDN_HOST_DEVICE constexpr bool has_queries() const { return direction == Direction::backward; }
    GDN_HOST_DEVICE constexpr float beta_of_zero() const { return least_beta(io); }
    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 8 / warps; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kMmaWarpRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kMmaTileElements - 1) / kMmaTileElements; }
    // Without queries, R's residual is in their place: as many tiles as values have.
    GDN_HOST_DEVICE constexpr int query_tiles() const {
        return has_queries() ? key_tiles() : rows_per_block() / kMmaTileElements;
    }
};

template <BackwardStatesConfig kConfig>
struct BackwardStatesPlan : MmaPlan<kConfig> {
    i64 first_index;  // of the sequence's chunks (BackwardHandover)
};

// As a call: backward has the gradients of outputs in place of values, and those of values in place of outputs; its first state
// is the gradient of the final one, and its last one that of the initial one.
struct BackwardStatesArgs {
    GdnCall call;
    DType state;
    BackwardHandover to;
};

}  // namespace gdn_cuda::gdn
