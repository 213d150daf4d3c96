// Eight neighbouring elements at any address, read in granules (16 aligned bytes) and shifted into place. A granule is read
// only if it holds an element of the tensor, so that no read leaves the tensor's pages.
#pragma once

#include <gdn_cuda/kernels/scan/selective/raw_vector_8.cuh>

namespace gdn_cuda::scan {

// 16 bytes of two granules, from byte `from` on, which is even and below 16.
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
struct Granules {
    using Vector = Eight<kNarrow>;

    const uint4* first;
    int before;  // bytes of the first before the eight
    int reach;   // bytes from there to the end of what exists

    __device__ __forceinline__ static int before_of(const char* address) {
        return static_cast<int>(reinterpret_cast<unsigned long long>(address)) & 15;
    }
    // `left`: the elements of a row from the address on; negative where the row ends before it.
    __device__ __forceinline__ static Granules of(const char* address, int left, DType type) {
        const int before = before_of(address);
        return {reinterpret_cast<const uint4*>(address - before), before,
                before + min(left, 8) * (Vector::is_wide(type) ? 4 : 2)};
    }
    __device__ __forceinline__ bool exists(int granule) const { return granule * 16 < reach; }
    // The eight, where the last granule is `next`.
    __device__ __forceinline__ static Vector joined(const Vector& own, const uint4& next, int before, DType type) {
        Vector x;
        if constexpr (kNarrow) {
            x.bits[0] = scan::joined(own.bits[0], next, before);
        } else {
            const bool wide = Vector::is_wide(type);
            uint4 second = next;
            if (wide) second = own.bits[1];
            x.bits[0] = scan::joined(own.bits[0], second, before);
            if (wide) x.bits[1] = scan::joined(own.bits[1], next, before);
        }
        return x;
    }
    __device__ __forceinline__ Vector load(DType type) const {
        // No conditional expressions: they would choose between addresses, and one of them would be of local memory.
        Vector own{};
        uint4 next{};
        if (exists(0)) own.bits[0] = first[0];
        if (exists(1)) next = first[1];
        if constexpr (!kNarrow)
            if (Vector::is_wide(type)) {
                own.bits[1] = next;
                next = {};
                if (exists(2)) next = first[2];
            }
        return joined(own, next, before, type);
    }
    // Where neighbouring threads have neighbouring eights: each fetches the granule in which its eight begin, the last of a row
    // also the one in which its eight end.
    __device__ __forceinline__ void fetch(Vector& to, DType type) const {
        if (exists(0)) cp_async_16(&to.bits[0], first);
        if constexpr (!kNarrow)
            if (Vector::is_wide(type) && exists(1)) cp_async_16(&to.bits[1], first + 1);
    }
    __device__ __forceinline__ void fetch_last(uint4& to, DType type) const {
        const int last = Vector::is_wide(type) ? 2 : 1;
        if (exists(last)) cp_async_16(&to, first + last);
    }
};

}  // namespace gdn_cuda::scan
