// Four elements of a tensor whose dtype is known at run time, in flight as raw bits.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ unsigned load_raw_if(bool exists, const Tagged& from, i64 at) {
    unsigned raw = 0;
    if (exists) raw = load_raw(from, at);
    return raw;
}

struct Four {
    unsigned bits[4] = {};  // of an element each, or two 16-bit elements where they are packed
    bool packed = false;

    // The first `count` elements, `step` apart; the others are zeros.
    __device__ __forceinline__ void load(const Tagged& from, i64 at, i64 step, int count) {
        const bool wide = from.type == DType::f32;
        const char* address = static_cast<const char*>(from.data) + (at << (wide ? 2 : 1));
        packed = false;
        if (step == 1 && count == 4 && reinterpret_cast<unsigned long long>(address) % (wide ? 16 : 8) == 0) {
            if (wide) {
                const uint4 x = *reinterpret_cast<const uint4*>(address);
                bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
            } else {
                const uint2 x = *reinterpret_cast<const uint2*>(address);
                bits[0] = x.x, bits[1] = x.y;
                packed = true;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) bits[i] = load_raw_if(i < count, from, at + i * step);
        }
    }
    __device__ __forceinline__ void to_floats(DType type, float (&x)[4]) const {
        const unsigned raw[4] = {bits[0], packed ? bits[0] >> 16 : bits[1], packed ? bits[1] : bits[2], packed ? bits[1] >> 16 : bits[3]};
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = number_of(raw[i], type);
    }
    __device__ __forceinline__ static Four of(DType type, const float (&x)[4]) {
        Four y;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned brain = __bfloat16_as_ushort(__float2bfloat16(x[i])), half = __half_as_ushort(__float2half(x[i]));
            y.bits[i] = type == DType::f32 ? __float_as_uint(x[i]) : type == DType::bf16 ? brain : half;
        }
        return y;
    }
    __device__ __forceinline__ void store(const Tagged& to, i64 at, i64 step, int count) const {
        const bool wide = to.type == DType::f32;
        char* address = static_cast<char*>(const_cast<void*>(to.data)) + (at << (wide ? 2 : 1));
        if (step == 1 && count == 4 && reinterpret_cast<unsigned long long>(address) % (wide ? 16 : 8) == 0) {
            if (wide)
                *reinterpret_cast<uint4*>(address) = {bits[0], bits[1], bits[2], bits[3]};
            else
                *reinterpret_cast<uint2*>(address) = {bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i >= count) continue;
            if (wide)
                reinterpret_cast<unsigned*>(address)[i * step] = bits[i];
            else
                reinterpret_cast<unsigned short*>(address)[i * step] = static_cast<unsigned short>(bits[i]);
        }
    }
};

}  // namespace gdn_cuda::scan
