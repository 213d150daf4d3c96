// Shared memory of tap_correlation.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kCorrelatedTaps = 128;  // of one accumulator

// Sums of a warp for up to kTaps taps, as lanes have them in accumulators.
template <int kTaps>
struct TapSums {
    static_assert(kTaps % kCorrelatedTaps == 0);
    alignas(16) float of_lanes[kTaps / kCorrelatedTaps][32][4];
};

}  // namespace gdn_cuda::conv
