// exp(A_log) of a gate with a bound, lower_bound sigmoid(exp(A_log) x): finite, as infinity times 0 is NaN.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

__device__ __forceinline__ float bounded_rate(float A_log) {
    return at_most(expf(A_log), 3.40282347e38f);
}

}  // namespace gdn_cuda
