// Shared memory of toeplitz/tap_correlation.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kCorrelatedTaps = 128;                       // lags at a time
inline constexpr int kCorrelatedUnits = kCorrelatedTaps / 8 + 1;  // 8 by 8 sums each

}  // namespace gdn_cuda::conv
