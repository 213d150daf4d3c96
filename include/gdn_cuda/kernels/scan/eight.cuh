// Eight elements of a tensor whose dtype is known at run time, in flight as raw bits.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

struct Eight {
    unsigned bits[8];  // 16-bit elements are in the first four

    // `count` of the elements exist, numbers of kParts elements each `step` apart; the others are zeros.
    template <int kParts = 1>
    __device__ __forceinline__ void load(const Tagged& from, i64 at, i64 step, int count) {
        const bool wide = from.type == DType::f32;
        const char* address = static_cast<const char*>(from.data) + (at << (wide ? 2 : 1));
        const auto element = [&](int i) { return i / kParts * step + i % kParts; };
        if (step == kParts && count == 8 && reinterpret_cast<unsigned long long>(address) % 16 == 0) {
            auto* vectors = reinterpret_cast<uint4*>(bits);
            vectors[0] = *reinterpret_cast<const uint4*>(address);
            if (wide) vectors[1] = *reinterpret_cast<const uint4*>(address + 16);
        } else if (wide) {
#pragma unroll
            for (int i = 0; i < 8; ++i) bits[i] = i < count ? reinterpret_cast<const unsigned*>(address)[element(i)] : 0;
        } else {
            const auto* items = reinterpret_cast<const unsigned short*>(address);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                bits[i] = 2 * i < count ? items[element(2 * i)] : 0;
                if (2 * i + 1 < count) bits[i] |= static_cast<unsigned>(items[element(2 * i + 1)]) << 16;
            }
        }
    }
    __device__ __forceinline__ void to_floats(DType type, float (&x)[8]) const {
        if (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(bits[i]);
        } else if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? bits[i / 2] & 0xffff0000u : bits[i / 2] << 16);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits[i / 2] >> (i % 2 * 16))));
        }
    }
    __device__ __forceinline__ static Eight of(DType type, const float (&x)[8]) {
        Eight y;
        if (type == DType::f32) {
#pragma unroll
            for (int i = 0; i < 8; ++i) y.bits[i] = __float_as_uint(x[i]);
        } else if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
                y.bits[i] = reinterpret_cast<const unsigned&>(pair);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
                y.bits[i] = reinterpret_cast<const unsigned&>(pair);
            }
        }
        return y;
    }
    __device__ __forceinline__ void store(void* to, DType type, i64 at, i64 step, int count) const {
        const bool wide = type == DType::f32;
        char* address = static_cast<char*>(to) + (at << (wide ? 2 : 1));
        if (step == 1 && count == 8 && reinterpret_cast<unsigned long long>(address) % 16 == 0) {
            const auto* vectors = reinterpret_cast<const uint4*>(bits);
            *reinterpret_cast<uint4*>(address) = vectors[0];
            if (wide) *reinterpret_cast<uint4*>(address + 16) = vectors[1];
        } else if (wide) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i < count) reinterpret_cast<unsigned*>(address)[i * step] = bits[i];
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i < count)
                    reinterpret_cast<unsigned short*>(address)[i * step] = static_cast<unsigned short>(bits[i / 2] >> (i % 2 * 16));
        }
    }
};

}  // namespace gdn_cuda::scan
