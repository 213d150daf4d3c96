// What the Toeplitz kernels share.
#pragma once

#include <gdn_cuda/kernels/structured/common.cuh>

namespace gdn_cuda::structured {

// Random signs, the same as gdn_cuda/structured/reference_toeplitz_operators.py has.
__device__ __forceinline__ double probe_at(int i) {
    const auto mixed = static_cast<unsigned>(i) * 2654435761u + 1013904223u;
    return static_cast<unsigned long long>(mixed) * mixed >> 16 & 1 ? -1 : 1;
}
// NaN wins.
__device__ __forceinline__ double larger(double x, double y) {
    return x >= y || x != x ? x : y;
}
// Of all threads of a block, the same in each.
template <int kWarps, class Of>
__device__ __forceinline__ double of_all(double x, double (&reduced)[kWarps], const Of& of) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x = of(x, __shfl_xor_sync(~0u, x, apart));
    if (threadIdx.x % 32 == 0) reduced[threadIdx.x / 32] = x;
    __syncthreads();
    x = reduced[0];
    for (int w = 1; w < kWarps; ++w) x = of(x, reduced[w]);
    return x;
}

}  // namespace gdn_cuda::structured
