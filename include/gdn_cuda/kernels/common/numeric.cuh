// Scalar functions of the gates in fp32, accurate to a few ulps. Includes the conversions of elements, which nearly every
// kernel needs with them.
#pragma once

#include <gdn_cuda/kernels/common/raw_element.cuh>

namespace gdn_cuda {

__device__ __forceinline__ float quiet_nan() {
    return __int_as_float(0x7fc00000);
}

// 2^x to 2 ulp; 0 below 2^-126.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x and the square root, to an ulp; subnormal inputs and results are 0.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float sqrt_fast(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// (e^x - 1 - x) / x^2 for |x| < 1/2, so that e^x - 1 and (e^x - 1) / x have a relative error of 3e-7.
__device__ __forceinline__ float expm1_tail(float x) {
    float p = 1.f / 5040;
    p = fmaf(p, x, 1.f / 720);
    p = fmaf(p, x, 1.f / 120);
    p = fmaf(p, x, 1.f / 24);
    p = fmaf(p, x, 1.f / 6);
    return fmaf(p, x, 0.5f);
}
__device__ __forceinline__ float expm1_small(float x) {
    const float tail = expm1_tail(x);
    return fmaf(x * x, tail, x);
}

// ln(1 + y) for 0 <= y <= 1, relative error below 2e-7. log1pf costs three times as much and made the gating kernel
// compute-bound.
__device__ __forceinline__ float log1p_of_unit(float y) {
    // Minimax polynomial for ln(1 + y) / y on [0, 1], degree 8.
    float p = 0.005232688f;
    p = fmaf(p, y, -0.029505214f);
    p = fmaf(p, y, 0.078225911f);
    p = fmaf(p, y, -0.136632428f);
    p = fmaf(p, y, 0.191060051f);
    p = fmaf(p, y, -0.248429820f);
    p = fmaf(p, y, 0.333190978f);
    p = fmaf(p, y, -0.499994934f);
    p = fmaf(p, y, 0.999999940f);
    return y * p;
}

// Max and min that propagate NaN.
__device__ __forceinline__ float at_least(float x, float bound) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(bound));
    return y;
}
__device__ __forceinline__ float at_most(float x, float bound) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(bound));
    return y;
}

// e^x for x up to 88, 0 where subnormal, to 3e-7 in fewer instructions than expf. The rounding error of x * log2(e) is added
// back at the end.
__device__ __forceinline__ float exp_fast(float x) {
    constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f, kResidualTimesLn2 = 1.33497e-8f, kLowest = -100.f;
    x = at_least(x, kLowest);
    const float power = x * kLog2e;
    const float y = exp2_fast(power);
    return fmaf(y, fmaf(x, kResidualTimesLn2, fmaf(x, kLog2e, -power) * kLn2), y);
}

__device__ __forceinline__ float softplus(float x) {
    return x > 20.f ? x : fmaxf(x, 0.f) + log1p_of_unit(exp_fast(-fabsf(x)));
}

// -exp(A_log) softplus(x) is an fp32 product, unless exp(A_log) would overflow (infinity times 0 is NaN) or softplus(x) would
// lose digits below 2^-126.
constexpr float kLargestRateLog = 88.f, kLowestOfSoftplus = -80.f;
// Then: -exp(A_log + ln softplus(x)), with an error of 1e-5 from rounding the sum. `soft` is softplus(x).
__device__ __forceinline__ float gate_by_logarithm(float A_log, float x, float soft) {
    return -expf(A_log + (x < kLowestOfSoftplus ? x : logf(soft)));
}
__device__ __forceinline__ float log_decay(float A_log, float x) {
    const float soft = softplus(x);
    float product = -expf(A_log) * soft;
    if (A_log > kLargestRateLog || x < kLowestOfSoftplus) product = gate_by_logarithm(A_log, x, soft);
    return product;
}

__device__ __forceinline__ float sigmoid(float x) {
    return __fdividef(1.f, 1.f + exp_fast(at_most(-x, 88.f)));
}

}  // namespace gdn_cuda
