// Parts of the Toeplitz solvers: the condition probe, and a block reduction.
#pragma once

#include <gdn_cuda/kernels/structured/common.cuh>

namespace gdn_cuda::structured {

// Signs of the condition probe, the same as in gdn_cuda/structured/reference_toeplitz_operators.py.
__device__ __forceinline__ double probe_at(int i) {
    const auto mixed = static_cast<unsigned>(i) * 2654435761u + 1013904223u;
    return static_cast<unsigned long long>(mixed) * mixed >> 16 & 1 ? -1 : 1;
}
// max(x, y); NaN if either is NaN.
__device__ __forceinline__ double max_or_nan(double x, double y) {
    return x >= y || x != x ? x : y;
}
// Reduces x over the block; every thread gets the result.
template <int kWarps, class Combine>
__device__ __forceinline__ double block_reduce(double x, double (&reduced)[kWarps], const Combine& combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = combine(x, __shfl_xor_sync(~0u, x, distance));
    if (threadIdx.x % 32 == 0) reduced[threadIdx.x / 32] = x;
    __syncthreads();
    x = reduced[0];
    for (int w = 1; w < kWarps; ++w) x = combine(x, reduced[w]);
    return x;
}

}  // namespace gdn_cuda::structured
