// Shared memory of tap_correlation.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kCorrelatedTaps = 128;                        // at a time
inline constexpr int kCorrelatedPieces = kCorrelatedTaps / 8 + 1;  // 8 by 8 sums each

}  // namespace gdn_cuda::conv
