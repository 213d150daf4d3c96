// Short vectors of a dtype known at compile time: loaded and stored by as few accesses as their alignment allows, read and
// written in fp32. raw_vector.cuh has those of a dtype known at run time.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

// The bits of kBytes contiguous bytes: one access of 4, 8 or 16 bytes, or several of 16.
//
// load_streaming bypasses L1: state is read once per step, and L1 stays free for q and k, which every warp of a block reads.
template <int kBytes>
struct Raw;
template <>
struct Raw<16> {
    uint4 bits;
    __device__ __forceinline__ void load_streaming(const void* from) {
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                     : "l"(from)
                     : "memory");
    }
    __device__ __forceinline__ void load(const void* from) { bits = *static_cast<const uint4*>(from); }
    __device__ __forceinline__ void store(void* to) const { *static_cast<uint4*>(to) = bits; }
    // Inline PTX: under a predicate the compiler splits vector stores.
    __device__ __forceinline__ void store_global(void* to) const {
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                     : "memory");
    }
};
template <>
struct Raw<8> {
    uint2 bits;
    __device__ __forceinline__ void load_streaming(const void* from) {
        asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(bits.x), "=r"(bits.y) : "l"(from) : "memory");
    }
    __device__ __forceinline__ void load(const void* from) { bits = *static_cast<const uint2*>(from); }
    __device__ __forceinline__ void store(void* to) const { *static_cast<uint2*>(to) = bits; }
    __device__ __forceinline__ void store_global(void* to) const {
        asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(bits.x), "r"(bits.y) : "memory");
    }
};
template <>
struct Raw<4> {
    unsigned bits;
    __device__ __forceinline__ void load(const void* from) { bits = *static_cast<const unsigned*>(from); }
    __device__ __forceinline__ void store(void* to) const { *static_cast<unsigned*>(to) = bits; }
};
template <int kBytes>
struct Raw {
    static_assert(kBytes % 32 == 0);
    Raw<kBytes / 2> half[2];

    __device__ __forceinline__ void load_streaming(const void* from) {
        half[0].load_streaming(from);
        half[1].load_streaming(static_cast<const uint4*>(from) + kBytes / 32);
    }
    __device__ __forceinline__ void load(const void* from) {
        half[0].load(from);
        half[1].load(static_cast<const uint4*>(from) + kBytes / 32);
    }
    __device__ __forceinline__ void store(void* to) const {
        half[0].store(to);
        half[1].store(static_cast<uint4*>(to) + kBytes / 32);
    }
};

template <class T, int kCount, bool kAligned>
struct Vector {
    static constexpr int kBytes = kCount * int(sizeof(T));
    alignas(kAligned ? (kBytes < 16 ? kBytes : 16) : alignof(T)) T items[kCount];

    __device__ __forceinline__ void load(const T* from) {
        if constexpr (kAligned) {
            reinterpret_cast<Raw<kBytes>*>(items)->load(from);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) items[i] = from[i];
        }
    }
    __device__ __forceinline__ void load_streaming(const T* from) {
        if constexpr (kAligned) {
            reinterpret_cast<Raw<kBytes>*>(items)->load_streaming(from);
        } else {
            load(from);
        }
    }
    __device__ __forceinline__ void store(T* to) const {
        if constexpr (kAligned) {
            reinterpret_cast<const Raw<kBytes>*>(items)->store(to);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) to[i] = items[i];
        }
    }
    __device__ __forceinline__ void store_global(T* to) const {
        if constexpr (kAligned) {
            reinterpret_cast<const Raw<kBytes>*>(items)->store_global(to);
        } else {
            store(to);
        }
    }
    __device__ __forceinline__ void fill(float x) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) items[i] = from_float<T>(x);
    }
    __device__ __forceinline__ void clear() { fill(0.f); }
    __device__ __forceinline__ float operator[](int i) const { return to_float(items[i]); }
    __device__ __forceinline__ void set(int i, float x) { items[i] = from_float<T>(x); }
};

// Sum over groups of kLanes adjacent lanes. Every lane gets the sum, with the same summation order.
template <int kLanes>
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Reduce-scatter: sums each of kCount values over groups of kLanes adjacent lanes; lane l gets the sums from index
// kCount * l / kLanes on, at the front of x. The sums are bitwise those of group_sum.
template <int kLanes, int kCount>
__device__ __forceinline__ void scatter_sums(float (&x)[kCount], int lane) {
    int count = kCount;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        if (count == 1) {
            x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
            continue;
        }
        count /= 2;
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (int i = 0; i < kCount / 2; ++i) {
            if (i >= count) continue;
            const float sent = upper ? x[i] : x[i + count], kept = upper ? x[i + count] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, step);
        }
    }
}

}  // namespace gdn_cuda
