// A vector of four elements whose dtype is known at run time, kept as raw bits until it is used.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/predicated_ptx.cuh>

namespace gdn_cuda::scan {

struct RawVector4 {
    unsigned bits[4] = {};  // 16-bit elements are packed in the first two words; after load_each, one in each word

    // Loads a vector from an address aligned to its size.
    __device__ __forceinline__ void load(const char* from, DType type) {
        if (type == DType::f32) {
            const uint4 x = *reinterpret_cast<const uint4*>(from);
            bits[0] = x.x, bits[1] = x.y, bits[2] = x.z, bits[3] = x.w;
        } else {
            const uint2 x = *reinterpret_cast<const uint2*>(from);
            bits[0] = x.x, bits[1] = x.y;
        }
    }
    // Loads element i from address(i), one by one, for i < count; the others keep their bits. Bits has the element's size.
    template <class Bits, class F>
    __device__ __forceinline__ void load_each(int count, const F& address) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const char* from = address(i);
            load_if(i < count, bits[i], reinterpret_cast<const Bits*>(from));
        }
    }
    template <DType kType, bool kEach = false>
    __device__ __forceinline__ void to_floats(float (&x)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned word = bits[kEach || kType == DType::f32 ? i : i / 2];
            const bool is_upper = !kEach && i % 2 == 1;
            if constexpr (kType == DType::f32)
                x[i] = __uint_as_float(word);
            else if constexpr (kType == DType::bf16)
                x[i] = __uint_as_float(is_upper ? word & 0xffff0000u : word << 16);
            else
                x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(is_upper ? word >> 16 : word)));
        }
    }
    template <bool kEach = false>
    __device__ __forceinline__ void to_floats(DType type, float (&x)[4]) const {
        if (type == DType::bf16)
            to_floats<DType::bf16, kEach>(x);
        else if (type == DType::f32)
            to_floats<DType::f32, kEach>(x);
        else
            to_floats<DType::f16, kEach>(x);
    }
    template <DType kType>
    __device__ __forceinline__ static RawVector4 of(const float (&x)[4]) {
        RawVector4 y;
        if constexpr (kType == DType::f32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) y.bits[i] = __float_as_uint(x[i]);
        } else if constexpr (kType == DType::bf16) {
            const __nv_bfloat162 low = __floats2bfloat162_rn(x[0], x[1]), high = __floats2bfloat162_rn(x[2], x[3]);
            y.bits[0] = reinterpret_cast<const unsigned&>(low), y.bits[1] = reinterpret_cast<const unsigned&>(high);
        } else {
            const __half2 low = __floats2half2_rn(x[0], x[1]), high = __floats2half2_rn(x[2], x[3]);
            y.bits[0] = reinterpret_cast<const unsigned&>(low), y.bits[1] = reinterpret_cast<const unsigned&>(high);
        }
        return y;
    }
    __device__ __forceinline__ void store(char* to, DType type) const {
        if (type == DType::f32)
            *reinterpret_cast<uint4*>(to) = {bits[0], bits[1], bits[2], bits[3]};
        else
            *reinterpret_cast<uint2*>(to) = {bits[0], bits[1]};
    }
    template <class Bits, class F>
    __device__ __forceinline__ void store_each(int count, const F& address) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            char* to = address(i);
            const unsigned x = sizeof(Bits) == 4 ? bits[i] : bits[i / 2] >> i % 2 * 16;
            store_if(i < count, reinterpret_cast<Bits*>(to), x);
        }
    }
};

}  // namespace gdn_cuda::scan
