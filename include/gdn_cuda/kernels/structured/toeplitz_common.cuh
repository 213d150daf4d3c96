// What the Toeplitz kernels share.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy_common.cuh>

namespace gdn_cuda::structured {

// Where a system of an operand begins, as row_of: systems are fewer than blocks, so 32 bits do. A division of 64 bits is a
// call, and calls save registers in memory.
template <class Args>
__device__ __forceinline__ i64 system_of(const Args& args, const CauchyOperand& operand, unsigned system) {
    i64 at = 0;
    for (int d = args.leading - 1; d >= 0; --d) {
        const auto size = static_cast<unsigned>(args.size[d]);
        at += system % size * operand.stride[d];
        system /= size;
    }
    return at;
}

// Random signs, the same as in gdn_cuda/ops/structured_toeplitz_solve.py.
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
