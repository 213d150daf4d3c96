// Conversions, and the scalar functions of the gates, accurate to a few fp32 ulps.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

__device__ __forceinline__ float quiet_nan() {
    return __int_as_float(0x7fc00000);
}

template <DType>
struct StorageOf;
template <>
struct StorageOf<DType::f32> {
    using type = float;
};
template <>
struct StorageOf<DType::bf16> {
    using type = __nv_bfloat16;
};
template <>
struct StorageOf<DType::f16> {
    using type = __half;
};
template <DType kType>
using Storage = typename StorageOf<kType>::type;

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half(x);
}

// Loads the bits without conversion and without a branch, so that several loads can be in flight.
__device__ __forceinline__ unsigned load_raw(const Tagged& from, i64 at) {
    const bool wide = from.type == DType::f32;
    const char* address = static_cast<const char*>(from.data) + (at << (wide ? 2 : 1));
    unsigned raw;
    asm volatile(
        "{\n"
        ".reg .pred wide;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "@wide ld.global.u32 %0, [%1];\n"
        "@!wide ld.global.u16 %0, [%1];\n"
        "}"
        : "=r"(raw)
        : "l"(address), "r"(static_cast<unsigned>(wide)));
    return raw;
}

__device__ __forceinline__ float number_of(unsigned raw, DType type) {
    const float half = __half2float(__ushort_as_half(static_cast<unsigned short>(raw)));
    return type == DType::f16 ? half : __uint_as_float(type == DType::bf16 ? raw << 16 : raw);
}

// A load in flight. 32-bit and 16-bit loads write separate registers: with one register the second load would wait for the
// first.
struct RawNumber {
    unsigned wide = 0, narrow = 0;

    __device__ __forceinline__ void load(const Tagged& from, i64 at) {
        const bool is_wide = from.type == DType::f32;
        load(static_cast<const char*>(from.data) + (at << (is_wide ? 2 : 1)), is_wide);
    }
    __device__ __forceinline__ void load(const void* address, bool is_wide) {
        asm volatile(
            "{\n"
            ".reg .pred wide;\n"
            "setp.ne.u32 wide, %3, 0;\n"
            "@wide ld.global.u32 %0, [%2];\n"
            "@!wide ld.global.u16 %1, [%2];\n"
            "}"
            : "+r"(wide), "+r"(narrow)
            : "l"(address), "r"(static_cast<unsigned>(is_wide)));
    }
    __device__ __forceinline__ float number(DType type) const { return number_of(wide | narrow, type); }
};

__device__ __forceinline__ float load_number(const Tagged& from, i64 at) {
    return number_of(load_raw(from, at), from.type);
}

// Rounds to a dtype known at run time.
__device__ __forceinline__ void store_number(void* to, DType type, i64 at, float x) {
    if (type == DType::f32)
        static_cast<float*>(to)[at] = x;
    else if (type == DType::bf16)
        static_cast<__nv_bfloat16*>(to)[at] = from_float<__nv_bfloat16>(x);
    else
        static_cast<__half*>(to)[at] = from_float<__half>(x);
}
__device__ __forceinline__ void store_number(const Tagged& to, i64 at, float x) {
    store_number(const_cast<void*>(to.data), to.type, at, x);
}

__device__ __forceinline__ i64 load_index(const Tagged& from, i64 at) {
    const bool wide = from.type == DType::i64;
    const char* address = static_cast<const char*>(from.data) + (at << (wide ? 3 : 2));
    i64 index;
    asm volatile(
        "{\n"
        ".reg .pred wide;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "@wide ld.global.s64 %0, [%1];\n"
        "@!wide ld.global.s32 %0, [%1];\n"
        "}"
        : "=l"(index)
        : "l"(address), "r"(static_cast<unsigned>(wide)));
    return index;
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
    constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f, kRestTimesLn2 = 1.33497e-8f, kLowest = -100.f;
    x = at_least(x, kLowest);
    const float power = x * kLog2e;
    const float y = exp2_fast(power);
    return fmaf(y, fmaf(x, kRestTimesLn2, fmaf(x, kLog2e, -power) * kLn2), y);
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
