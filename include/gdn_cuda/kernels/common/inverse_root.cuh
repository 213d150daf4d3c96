// Reciprocal square root, for norms.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

// 1 / sqrt(x), to two ulps.
__device__ __forceinline__ float inverse_root(float x) {
    return reciprocal_fast(sqrt_fast(x));
}

}  // namespace gdn_cuda
