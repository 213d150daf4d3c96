// Pairs of floats, and packed pairs of 16-bit floats.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

__device__ __forceinline__ float2 pair_at(const float* values) {
    return *reinterpret_cast<const float2*>(values);
}
__device__ __forceinline__ float2 times(float2 a, float2 b) {
    return {a.x * b.x, a.y * b.y};
}

// Rounds two floats to a packed pair, the first in the low half.
template <DType kType>
__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned pair;
    if constexpr (kType == DType::bf16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}
template <DType kType>
__device__ __forceinline__ float2 unpack(unsigned pair) {
    if constexpr (kType == DType::bf16) {
        return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
    } else {
        return __half22float2(*reinterpret_cast<const __half2*>(&pair));
    }
}
// The maximum of `absolute` and |b| in each half.
template <DType kType>
__device__ __forceinline__ unsigned larger(unsigned absolute, unsigned b) {
    unsigned pair;
    if constexpr (kType == DType::bf16) {
        asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(absolute), "r"(b & 0x7fff7fffu));
    } else {
        asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(absolute), "r"(b & 0x7fff7fffu));
    }
    return pair;
}

// Rounding residuals of two floats whose rounded pair is `near`.
template <DType kType>
__device__ __forceinline__ unsigned pack_residual(float low, float high, unsigned near) {
    const float2 rounded = unpack<kType>(near);
    return pack<kType>(low - rounded.x, high - rounded.y);
}

// Adds the squares of eight 16-bit elements.
template <DType kType>
__device__ __forceinline__ void add_squares(float& sum, const uint4& eight) {
    const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (const unsigned pair : pairs) {
        const float2 x = unpack<kType>(pair);
        sum = fmaf(x.x, x.x, fmaf(x.y, x.y, sum));
    }
}

}  // namespace gdn_cuda
