// ldmatrix and mma.sync through CUTLASS, and packed 16-bit pairs.
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

// Tensor cores truncate to tf32; adding half an ulp makes that round to nearest.
constexpr unsigned kToTf32 = 0x1000;
__device__ __forceinline__ unsigned to_tf32(float x) {
    return __float_as_uint(x) + kToTf32;
}
__device__ __forceinline__ float round_tf32(float x) {
    return __uint_as_float(to_tf32(x) & 0xffffe000u);
}
// d (16 x 8) += a (16 x 8) b (8 x 8). With (g, t) = (lane / 4, lane % 4): a is (g, k0) (g + 8, k0) (g, k1) (g + 8, k1), b is
// (k0, g) (k1, g), d is (g, 2 t) (g, 2 t + 1) (g + 8, 2 t) (g + 8, 2 t + 1). k0 and k1 may be any two columns of a, if they are
// the same rows of b.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    cute::SM80_16x8x8_F32TF32TF32F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], b0, b1, d[0], d[1], d[2], d[3]);
}

}  // namespace gdn_cuda
