// Four neighbouring elements of a tensor whose dtype is known at run time, in flight as raw bits.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

struct Four {
    unsigned bits[4] = {};  // 16-bit elements are in the first two

    // From an address that is aligned to them.
    __device__ __forceinline__ void load(const char* from, DType type) {
        if (type == DType::f32) {
            const uint4 x = *reinterpret_cast<const uint4*>(from);
            bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
        } else {
            const uint2 x = *reinterpret_cast<const uint2*>(from);
            bits[0] = x.x, bits[1] = x.y;
        }
    }
    template <DType kType>
    __device__ __forceinline__ void to_floats(float (&x)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (kType == DType::f32)
                x[i] = __uint_as_float(bits[i]);
            else if constexpr (kType == DType::bf16)
                x[i] = __uint_as_float(i % 2 ? bits[i / 2] & 0xffff0000u : bits[i / 2] << 16);
            else
                x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits[i / 2] >> (i % 2 * 16))));
        }
    }
    __device__ __forceinline__ void to_floats(DType type, float (&x)[4]) const {
        if (type == DType::bf16)
            to_floats<DType::bf16>(x);
        else if (type == DType::f32)
            to_floats<DType::f32>(x);
        else
            to_floats<DType::f16>(x);
    }
    template <DType kType>
    __device__ __forceinline__ static void store(char* to, const float (&x)[4]) {
        if constexpr (kType == DType::f32) {
            *reinterpret_cast<float4*>(to) = {x[0], x[1], x[2], x[3]};
        } else if constexpr (kType == DType::bf16) {
            const __nv_bfloat162 low = __floats2bfloat162_rn(x[0], x[1]), high = __floats2bfloat162_rn(x[2], x[3]);
            *reinterpret_cast<uint2*>(to) = {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
        } else {
            const __half2 low = __floats2half2_rn(x[0], x[1]), high = __floats2half2_rn(x[2], x[3]);
            *reinterpret_cast<uint2*>(to) = {reinterpret_cast<const unsigned&>(low), reinterpret_cast<const unsigned&>(high)};
        }
    }
};

// One element, where four do not lie side by side.
__device__ __forceinline__ void store_element(char* to, DType type, i64 at, float x) {
    if (type == DType::f32)
        reinterpret_cast<float*>(to)[at] = x;
    else if (type == DType::bf16)
        reinterpret_cast<__nv_bfloat16*>(to)[at] = __float2bfloat16(x);
    else
        reinterpret_cast<__half*>(to)[at] = __float2half(x);
}

}  // namespace gdn_cuda::scan
