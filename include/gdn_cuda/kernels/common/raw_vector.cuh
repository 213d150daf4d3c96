// A vector of eight elements whose dtype is known at run time, kept as raw bits until it is used.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

// kNarrow: 16-bit dtypes only, which takes half the registers.
template <bool kNarrow>
struct RawVector8 {
    uint4 bits[kNarrow ? 1 : 2];  // 16-bit dtypes use the first alone

    __device__ __forceinline__ static bool is_wide(DType type) { return !kNarrow && type == DType::f32; }

    __device__ __forceinline__ void load(const void* from, DType type) {
        const auto* vectors = static_cast<const uint4*>(from);
        bits[0] = vectors[0];
        if constexpr (!kNarrow)
            if (is_wide(type)) bits[1] = vectors[1];
    }
    // Copies through shared memory, so that loads in flight take no registers. The same thread reads it after cp_async_wait.
    __device__ __forceinline__ static void fetch(RawVector8& to, const void* from, DType type) {
        cp_async_16(&to.bits[0], from);
        if constexpr (!kNarrow)
            if (is_wide(type)) cp_async_16(&to.bits[1], static_cast<const uint4*>(from) + 1);
    }
    __device__ __forceinline__ void store(void* to, DType type) const {
        auto* vectors = static_cast<uint4*>(to);
        vectors[0] = bits[0];
        if constexpr (!kNarrow)
            if (is_wide(type)) vectors[1] = bits[1];
    }
    // Stores elements `begin` to `end`, one by one.
    __device__ __forceinline__ void store_some(void* to, DType type, int begin, int end) const {
        const unsigned words[4] = {bits[0].x, bits[0].y, bits[0].z, bits[0].w};
        if (is_wide(type)) {
            if constexpr (!kNarrow) {
                const unsigned others[4] = {bits[1].x, bits[1].y, bits[1].z, bits[1].w};
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (begin <= i && i < end) static_cast<unsigned*>(to)[i] = i < 4 ? words[i] : others[i - 4];
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (begin <= i && i < end)
                    static_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
        }
    }
    __device__ __forceinline__ void to_floats(DType type, float (&x)[8]) const {
        const unsigned words[4] = {bits[0].x, bits[0].y, bits[0].z, bits[0].w};
        if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
        } else if (is_wide(type)) {
            if constexpr (!kNarrow) {
                const unsigned others[4] = {bits[1].x, bits[1].y, bits[1].z, bits[1].w};
#pragma unroll
                for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i < 4 ? words[i] : others[i - 4]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16))));
        }
    }
    __device__ __forceinline__ static RawVector8 of(DType type, const float (&x)[8]) {
        RawVector8 y;
        unsigned words[4];
        if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
                words[i] = reinterpret_cast<const unsigned&>(pair);
            }
        } else if (is_wide(type)) {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(x[i]);
            if constexpr (!kNarrow)
                y.bits[1] = {__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]), __float_as_uint(x[7])};
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
                words[i] = reinterpret_cast<const unsigned&>(pair);
            }
        }
        y.bits[0] = {words[0], words[1], words[2], words[3]};
        return y;
    }
};

}  // namespace gdn_cuda::scan
