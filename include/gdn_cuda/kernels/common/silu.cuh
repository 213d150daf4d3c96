// Fast silu.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

// 1 / (1 + e^-z), 0 for z below -87.
__device__ __forceinline__ float silu_gate(float z) {
    constexpr float kMinusLog2e = -1.44269504f;
    return reciprocal_fast(1.f + exp2_fast(z * kMinusLog2e));
}
// silu(z) = z sigmoid(z), NaN for z = -infinity as in torch.
__device__ __forceinline__ float silu(float z) {
    return z * silu_gate(z);
}
// Derivative of silu.
__device__ __forceinline__ float silu_slope(float z) {
    const float gate = silu_gate(z);
    return gate * fmaf(z, 1.f - gate, 1.f);
}

}  // namespace gdn_cuda
