// Warp MMAs of tf32 elements (mma.sync, sm_80). Inline PTX: CUTLASS's wrapper is volatile, which makes ptxas of CUDA
// 12.9 spill registers of structured/cauchy_batch on sm_120; its headers would also double the compile time of kernels that
// need nothing else from CUTLASS.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// Tensor cores truncate to tf32; adding half an ulp makes that round to nearest.
constexpr unsigned kToTf32 = 0x1000;
__device__ __forceinline__ unsigned to_tf32(float x) {
    return __float_as_uint(x) + kToTf32;
}
__device__ __forceinline__ float round_tf32(float x) {
    return __uint_as_float(to_tf32(x) & 0xffffe000u);
}
// d (16 x 8) += a (16 x 8) b (8 x 8). With (g, t) = (lane / 4, lane % 4): a is (g, k0) (g + 8, k0) (g, k1) (g + 8, k1), b is
// (k0, g) (k1, g), d is (g, 2 t) (g, 2 t + 1) (g + 8, 2 t) (g + 8, 2 t + 1). k0 and k1 may be any two columns of a, with the
// same two rows of b.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 3xTF32: an operand of nearly fp32 accuracy as two tf32 parts, `high` and the `residual`, which the tensor cores truncate to
// tf32. Three products of parts (all but residual times residual) have a relative error of about 2^-20.
struct TwoParts {
    unsigned high, residual;

    static __device__ __forceinline__ TwoParts of(float x) {
        const unsigned high = __float_as_uint(x) & 0xffffe000u;
        return {high, __float_as_uint(x - __uint_as_float(high))};
    }
    // Four instructions, not two: both parts rounded to nearest, with an error of about 2^-23 and no bias. Scaling the residual
    // up makes its truncation unbiased on average; adding to its bits, as to_tf32 does, could turn NaN into a finite value.
    static __device__ __forceinline__ TwoParts nearest(float x) {
        const float high = round_tf32(x);
        return {__float_as_uint(high), __float_as_uint((x - high) * 0x1.0016p+0f)};
    }
};

// sums (16 x 8) += a (16 x 8) b (8 x 8), fragments as in mma_m16n8k8_tf32; small products first.
__device__ __forceinline__ void add_product_fp32(float (&sums)[4], const TwoParts (&a)[4], TwoParts b0, TwoParts b1) {
    const unsigned high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    const unsigned residual[4] = {a[0].residual, a[1].residual, a[2].residual, a[3].residual};
    mma_m16n8k8_tf32(sums, residual, b0.high, b1.high);
    mma_m16n8k8_tf32(sums, high, b0.residual, b1.residual);
    mma_m16n8k8_tf32(sums, high, b0.high, b1.high);
}

}  // namespace gdn_cuda
