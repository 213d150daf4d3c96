// Four elements of a tensor whose dtype is known at run time, in flight as raw bits.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

struct Four {
    unsigned bits[4] = {};  // 16-bit elements are in the first two

    // The first `count` elements, `step` apart; the others are zeros.
    __device__ __forceinline__ void load(const void* from, DType type, i64 at, i64 step, int count) {
        const bool wide = type == DType::f32;
        const char* address = static_cast<const char*>(from) + (at << (wide ? 2 : 1));
        const auto aligned = [&](unsigned bytes) { return step == 1 && count == 4 && reinterpret_cast<unsigned long long>(address) % bytes == 0; };
        if (wide) {
            if (aligned(16)) {
                const uint4 x = *reinterpret_cast<const uint4*>(address);
                bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) bits[i] = i < count ? reinterpret_cast<const unsigned*>(address)[i * step] : 0u;
            }
        } else if (aligned(8)) {
            const uint2 x = *reinterpret_cast<const uint2*>(address);
            bits[0] = x.x, bits[1] = x.y;
        } else {
            const auto* items = reinterpret_cast<const unsigned short*>(address);
            unsigned item[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) item[i] = i < count ? items[i * step] : 0u;
            bits[0] = item[0] | item[1] << 16;
            bits[1] = item[2] | item[3] << 16;
        }
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
            for (int i = 0; i < 4; ++i) x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits[i / 2] >> (i % 2 * 16))));
        }
    }
    __device__ __forceinline__ static Four of(DType type, const float (&x)[4]) {
        Four y;
        if (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) y.bits[i] = __float_as_uint(x[i]);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool brain = type == DType::bf16;
                const unsigned low = brain ? __bfloat16_as_ushort(__float2bfloat16(x[2 * i])) : __half_as_ushort(__float2half(x[2 * i]));
                const unsigned high =
                    brain ? __bfloat16_as_ushort(__float2bfloat16(x[2 * i + 1])) : __half_as_ushort(__float2half(x[2 * i + 1]));
                y.bits[i] = low | high << 16;
            }
        }
        return y;
    }
    __device__ __forceinline__ void store(void* to, DType type, i64 at, i64 step, int count) const {
        const bool wide = type == DType::f32;
        char* address = static_cast<char*>(to) + (at << (wide ? 2 : 1));
        const bool whole = step == 1 && count == 4 && reinterpret_cast<unsigned long long>(address) % (wide ? 16 : 8) == 0;
        if (whole && wide) {
            *reinterpret_cast<uint4*>(address) = {bits[0], bits[1], bits[2], bits[3]};
        } else if (whole) {
            *reinterpret_cast<uint2*>(address) = {bits[0], bits[1]};
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (i >= count) continue;
                if (wide)
                    reinterpret_cast<unsigned*>(address)[i * step] = bits[i];
                else
                    reinterpret_cast<unsigned short*>(address)[i * step] = static_cast<unsigned short>(bits[i / 2] >> (i % 2 * 16));
            }
        }
    }
};

}  // namespace gdn_cuda::scan
