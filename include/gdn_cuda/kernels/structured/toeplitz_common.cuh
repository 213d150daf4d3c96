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

}  // namespace gdn_cuda::structured
