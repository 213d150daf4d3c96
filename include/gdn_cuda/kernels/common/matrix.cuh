// ldmatrix through CUTLASS, and packed 16-bit pairs.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm80.cuh>
#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

// CUTLASS takes a matrix row by reference; ptxas folds the conversion from and to a shared-window address.
__device__ __forceinline__ cute::uint128_t& shared_row(unsigned row) {
    return *static_cast<cute::uint128_t*>(__cvta_shared_to_generic(row));
}

// Four 8 x 8 matrices; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&x)[4], unsigned row) {
    cute::SM75_U32x4_LDSM_N::copy(shared_row(row), x[0], x[1], x[2], x[3]);
}
// Each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&x)[4], unsigned row) {
    cute::SM75_U16x8_LDSM_T::copy(shared_row(row), x[0], x[1], x[2], x[3]);
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
// Per half, the maximum of `absolute` and |b|.
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

// The rounding residual of two floats whose rounded pair is `near`.
template <DType kType>
__device__ __forceinline__ unsigned pack_rest(float low, float high, unsigned near) {
    const float2 rounded = unpack<kType>(near);
    return pack<kType>(low - rounded.x, high - rounded.y);
}

}  // namespace gdn_cuda
