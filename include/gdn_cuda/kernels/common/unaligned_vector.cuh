// Eight contiguous elements at any element address, whose dtype is known at run time (raw_element.cuh says why). They are read
// as the aligned 16-byte vectors that contain them, two or for fp32 three, and shifted into place. A vector is read only if it
// holds an element of the tensor, so no read leaves the tensor's pages.
#pragma once

#include <gdn_cuda/kernels/common/raw_vector.cuh>

namespace gdn_cuda {

// 16 of the bytes of two adjacent vectors, from byte `from` on, which is even and below 16.
__device__ __forceinline__ uint4 joined(const uint4& low, const uint4& high, int from) {
    unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (from & 8) {
#pragma unroll
        for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
    }
    if (from & 4) {
#pragma unroll
        for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
    }
    const int bits = from % 4 * 8;
    return {__funnelshift_r(words[0], words[1], bits), __funnelshift_r(words[1], words[2], bits),
            __funnelshift_r(words[2], words[3], bits), __funnelshift_r(words[3], words[4], bits)};
}

template <bool kNarrow>
struct UnalignedVector {
    using Vector = RawVector<8, kNarrow>;

    const uint4* first;
    int before;  // bytes of the first vector before the eight elements
    int reach;   // bytes from the start of the first vector to the last element that exists

    __device__ __forceinline__ static int before_of(const char* address) {
        return static_cast<int>(reinterpret_cast<unsigned long long>(address)) & 15;
    }
    // `left`: elements of the row from the address on; negative if the row ends before it.
    __device__ __forceinline__ static UnalignedVector of(const char* address, int left, DType type) {
        const int before = before_of(address);
        return {reinterpret_cast<const uint4*>(address - before), before,
                before + min(left, 8) * (Vector::is_wide(type) ? 4 : 2)};
    }
    __device__ __forceinline__ bool exists(int vector) const { return vector * 16 < reach; }
    // Shifts into place: `own` has the first vectors, `next` is the last one.
    __device__ __forceinline__ static Vector joined(const Vector& own, const uint4& next, int before, DType type) {
        Vector x;
        if constexpr (kNarrow) {
            x.vectors[0] = gdn_cuda::joined(own.vectors[0], next, before);
        } else {
            const bool wide = Vector::is_wide(type);
            uint4 second = next;
            if (wide) second = own.vectors[1];
            x.vectors[0] = gdn_cuda::joined(own.vectors[0], second, before);
            if (wide) x.vectors[1] = gdn_cuda::joined(own.vectors[1], next, before);
        }
        return x;
    }
    __device__ __forceinline__ Vector load(DType type) const {
        // Branches instead of conditional expressions: the compiler would select between addresses, one of them in local
        // memory.
        Vector own{};
        uint4 next{};
        if (exists(0)) own.vectors[0] = first[0];
        if (exists(1)) next = first[1];
        if constexpr (!kNarrow)
            if (Vector::is_wide(type)) {
                own.vectors[1] = next;
                next = {};
                if (exists(2)) next = first[2];
            }
        return joined(own, next, before, type);
    }
    // For adjacent threads with adjacent elements: each fetches its vectors but the last, which it reads from the next thread.
    // The last thread of a row also calls fetch_last.
    __device__ __forceinline__ void fetch(Vector& to, DType type) const {
        if (exists(0)) cp_async_16(&to.vectors[0], first);
        if constexpr (!kNarrow)
            if (Vector::is_wide(type) && exists(1)) cp_async_16(&to.vectors[1], first + 1);
    }
    __device__ __forceinline__ void fetch_last(uint4& to, DType type) const {
        const int last = Vector::is_wide(type) ? 2 : 1;
        if (exists(last)) cp_async_16(&to, first + last);
    }
};

}  // namespace gdn_cuda
