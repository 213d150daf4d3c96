// Configurations, shared memory and arguments of conv/hyena_filter and conv/hyena_filter_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaFilterWarps = 4, kHyenaFilterThreads = 32 * kHyenaFilterWarps;
// A warp computes a stretch of 256 tokens at a time; a lane has every 32nd of them.
inline constexpr int kHyenaFilterLaneTokens = 8, kHyenaFilterStretch = 32 * kHyenaFilterLaneTokens;
inline constexpr int kHyenaFilterMostStates = 64;

struct HyenaFilterConfig {
    int stretches;  // per warp

    constexpr bool operator==(const HyenaFilterConfig&) const = default;
    GDN_FIELDS(stretches)

    GDN_HOST_DEVICE constexpr int tokens() const { return kHyenaFilterWarps * stretches * kHyenaFilterStretch; }  // per block
};

struct HyenaFilterBackwardConfig {
    int states;     // per warp
    int stretches;  // per block, which sums over a segment of a row

    constexpr bool operator==(const HyenaFilterBackwardConfig&) const = default;
    GDN_FIELDS(states, stretches)

    GDN_HOST_DEVICE constexpr int tokens() const { return stretches * kHyenaFilterStretch; }
    GDN_HOST_DEVICE constexpr int block_states() const { return kHyenaFilterWarps * states; }
};

// e^{log pole · 32 i}: the decay of a lane's i-th token relative to its first.
struct alignas(16) HyenaFilterPowers {
    float values[kHyenaFilterLaneTokens];
};

struct HyenaFilterSharedPlan {
    HyenaFilterPowers powers[kHyenaFilterMostStates];
    float residues[kHyenaFilterMostStates], log_poles[kHyenaFilterMostStates];
};

struct HyenaFilterArgs {
    const float* residues;   // (rows, count)
    const float* log_poles;  // (rows, count)
    float* filter;           // (rows, tokens)
    int rows, count;
    i64 tokens;
    // Arguments of the backward kernel:
    const float* grad;  // (rows, tokens)
    float* sums;        // (segments, 2, rows, count): Σ_t grad p^t, Σ_t grad t p^t
};

}  // namespace gdn_cuda::conv
