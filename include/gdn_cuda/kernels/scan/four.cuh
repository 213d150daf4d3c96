// Four elements of a tensor whose dtype is known at run time, in flight as raw bits.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

// As load_raw, for an element that may not exist, and is 0 then; both without a branch.
__device__ __forceinline__ unsigned load_raw_if(bool exists, const char* from, DType type, i64 at) {
    const bool is_wide = type == DType::f32;
    unsigned raw = 0;
    asm volatile(
        "{\n"
        ".reg .pred wide, narrow;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "setp.ne.u32 narrow, %3, 0;\n"
        "@wide ld.global.u32 %0, [%1];\n"
        "@narrow ld.global.u16 %0, [%1];\n"
        "}"
        : "+r"(raw)
        : "l"(from + (at << (is_wide ? 2 : 1))), "r"(static_cast<unsigned>(exists && is_wide)),
          "r"(static_cast<unsigned>(exists && !is_wide)));
    return raw;
}
__device__ __forceinline__ void store_raw_if(bool exists, char* to, DType type, i64 at, unsigned raw) {
    const bool is_wide = type == DType::f32;
    asm volatile(
        "{\n"
        ".reg .pred wide, narrow;\n"
        ".reg .u16 low;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "setp.ne.u32 narrow, %3, 0;\n"
        "cvt.u16.u32 low, %1;\n"
        "@wide st.global.u32 [%0], %1;\n"
        "@narrow st.global.u16 [%0], low;\n"
        "}" ::"l"(to + (at << (is_wide ? 2 : 1))),
        "r"(raw), "r"(static_cast<unsigned>(exists && is_wide)), "r"(static_cast<unsigned>(exists && !is_wide))
        : "memory");
}

struct Four {
    unsigned bits[4] = {};  // 16-bit elements are in the first two

    __device__ __forceinline__ static bool is_vector(const char* at, DType type, i64 step, int count) {
        return step == 1 && count == 4 && reinterpret_cast<unsigned long long>(at) % (type == DType::f32 ? 16 : 8) == 0;
    }
    // The first `count` elements, `step` apart; the others are zeros.
    __device__ __forceinline__ void load(const char* from, DType type, i64 step, int count) {
        if (is_vector(from, type, step, count)) {
            if (type == DType::f32) {
                const uint4 x = *reinterpret_cast<const uint4*>(from);
                bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
            } else {
                const uint2 x = *reinterpret_cast<const uint2*>(from);
                bits[0] = x.x, bits[1] = x.y;
            }
            return;
        }
        unsigned element[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) element[i] = load_raw_if(i < count, from, type, i * step);
        const bool wide = type == DType::f32;
        bits[0] = wide ? element[0] : element[0] | element[1] << 16;
        bits[1] = wide ? element[1] : element[2] | element[3] << 16;
        bits[2] = element[2];
        bits[3] = element[3];
    }
    __device__ __forceinline__ void to_floats(DType type, float (&x)[4]) const {
        if (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(bits[i]);
        } else if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = __uint_as_float(i % 2 ? bits[i / 2] & 0xffff0000u : bits[i / 2] << 16);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = number_of(bits[i / 2] >> (i % 2 * 16), DType::f16);
        }
    }
    __device__ __forceinline__ static void store(char* to, DType type, i64 step, int count, const float (&x)[4]) {
        unsigned element[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned brain = __bfloat16_as_ushort(__float2bfloat16(x[i])), half = __half_as_ushort(__float2half(x[i]));
            element[i] = type == DType::f32 ? __float_as_uint(x[i]) : type == DType::bf16 ? brain : half;
        }
        if (is_vector(to, type, step, count)) {
            if (type == DType::f32)
                *reinterpret_cast<uint4*>(to) = {element[0], element[1], element[2], element[3]};
            else
                *reinterpret_cast<uint2*>(to) = {element[0] | element[1] << 16, element[2] | element[3] << 16};
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) store_raw_if(i < count, to, type, i * step, element[i]);
    }
};

}  // namespace gdn_cuda::scan
