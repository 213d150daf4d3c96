// Four or eight contiguous elements whose dtype is known at run time (raw_element.cuh says why), as raw bits until they are
// used:
//
//     load, store        as few accesses as the dtype allows
//     to_floats, of      conversions from and to fp32
//     fetch              eight elements, by cp.async
//     load_each, store_each, store_some      element by element, where some do not exist
//
// Four elements are words and eight are uint4: with either for both, one of selective_backward and selective_forward gets other
// registers.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/predicated_ptx.cuh>
#include <gdn_cuda/kernels/common/raw_element.cuh>

namespace gdn_cuda {

template <int kCount, bool kNarrow = false>
struct RawVector;

// kNarrow: 16-bit dtypes only, which takes half the registers. Addresses are aligned to 16 bytes.
template <bool kNarrow>
struct RawVector<8, kNarrow> {
    uint4 vectors[kNarrow ? 1 : 2];  // 16-bit dtypes use the first alone

    __device__ __forceinline__ static bool is_wide(DType type) { return !kNarrow && type == DType::f32; }

    __device__ __forceinline__ void load(const void* from, DType type) {
        const auto* at = static_cast<const uint4*>(from);
        vectors[0] = at[0];
        if constexpr (!kNarrow)
            if (is_wide(type)) vectors[1] = at[1];
    }
    // Copies through shared memory, so that loads in flight take no registers. The same thread reads it after cp_async_wait.
    __device__ __forceinline__ static void fetch(RawVector& to, const void* from, DType type) {
        cp_async_16(&to.vectors[0], from);
        if constexpr (!kNarrow)
            if (is_wide(type)) cp_async_16(&to.vectors[1], static_cast<const uint4*>(from) + 1);
    }
    __device__ __forceinline__ void store(void* to, DType type) const {
        auto* at = static_cast<uint4*>(to);
        at[0] = vectors[0];
        if constexpr (!kNarrow)
            if (is_wide(type)) at[1] = vectors[1];
    }
    // Stores elements `begin` to `end`, one by one.
    __device__ __forceinline__ void store_some(void* to, DType type, int begin, int end) const {
        const unsigned words[4] = {vectors[0].x, vectors[0].y, vectors[0].z, vectors[0].w};
        if (is_wide(type)) {
            if constexpr (!kNarrow) {
                const unsigned others[4] = {vectors[1].x, vectors[1].y, vectors[1].z, vectors[1].w};
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
        const unsigned words[4] = {vectors[0].x, vectors[0].y, vectors[0].z, vectors[0].w};
        if (type == DType::bf16) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
        } else if (is_wide(type)) {
            if constexpr (!kNarrow) {
                const unsigned others[4] = {vectors[1].x, vectors[1].y, vectors[1].z, vectors[1].w};
#pragma unroll
                for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i < 4 ? words[i] : others[i - 4]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                x[i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16))));
        }
    }
    __device__ __forceinline__ static RawVector of(DType type, const float (&x)[8]) {
        RawVector y;
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
                y.vectors[1] = {__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]), __float_as_uint(x[7])};
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
                words[i] = reinterpret_cast<const unsigned&>(pair);
            }
        }
        y.vectors[0] = {words[0], words[1], words[2], words[3]};
        return y;
    }
};

template <>
struct RawVector<4> {
    unsigned words[4] = {};  // 16-bit elements are packed in the first two words; after load_each, one in each word

    // Loads a vector from an address aligned to its size.
    __device__ __forceinline__ void load(const char* from, DType type) {
        if (type == DType::f32) {
            const uint4 x = *reinterpret_cast<const uint4*>(from);
            words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
        } else {
            const uint2 x = *reinterpret_cast<const uint2*>(from);
            words[0] = x.x, words[1] = x.y;
        }
    }
    // Loads element i from address(i), one by one, for i < count; the others keep their bits. Bits has the element's size.
    template <class Bits, class F>
    __device__ __forceinline__ void load_each(int count, const F& address) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const char* from = address(i);
            load_if(i < count, words[i], reinterpret_cast<const Bits*>(from));
        }
    }
    template <DType kType, bool kEach = false>
    __device__ __forceinline__ void to_floats(float (&x)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned word = words[kEach || kType == DType::f32 ? i : i / 2];
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
    __device__ __forceinline__ static RawVector of(const float (&x)[4]) {
        RawVector y;
        if constexpr (kType == DType::f32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) y.words[i] = __float_as_uint(x[i]);
        } else if constexpr (kType == DType::bf16) {
            const __nv_bfloat162 low = __floats2bfloat162_rn(x[0], x[1]), high = __floats2bfloat162_rn(x[2], x[3]);
            y.words[0] = reinterpret_cast<const unsigned&>(low), y.words[1] = reinterpret_cast<const unsigned&>(high);
        } else {
            const __half2 low = __floats2half2_rn(x[0], x[1]), high = __floats2half2_rn(x[2], x[3]);
            y.words[0] = reinterpret_cast<const unsigned&>(low), y.words[1] = reinterpret_cast<const unsigned&>(high);
        }
        return y;
    }
    __device__ __forceinline__ void store(char* to, DType type) const {
        if (type == DType::f32)
            *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
        else
            *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
    }
    template <class Bits, class F>
    __device__ __forceinline__ void store_each(int count, const F& address) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            char* to = address(i);
            const unsigned x = sizeof(Bits) == 4 ? words[i] : words[i / 2] >> i % 2 * 16;
            store_if(i < count, reinterpret_cast<Bits*>(to), x);
        }
    }
};

}  // namespace gdn_cuda
