// Elements whose dtype is known at run time. One compiled kernel serves fp32, bf16 and fp16, and every combination of them over
// its tensors, so that a first call compiles one kernel and is short. The dtype of the tensors that bound a kernel is in its
// configuration instead (Storage, Vector).
//
// "Raw" bits are as loaded. They are converted where they are used, so that nothing waits for a load before that.
//
//     load_float, store_float        one element, converted
//     load_raw, to_float             its bits, and their value
//     RawElement, RawElements        one or several elements in flight
//     RawVector                      4 or 8 contiguous elements, aligned (raw_vector.cuh)
//     UnalignedVector                8 contiguous elements at any element address (unaligned_vector.cuh)
//     load_index                     an element of int32 or int64
#pragma once

#include <gdn_cuda/kernels/common/storage.cuh>

namespace gdn_cuda {

// Loads the bits without a branch, so that several loads can be in flight.
__device__ __forceinline__ unsigned load_raw(const Tagged& from, i64 at) {
    const bool wide = from.type == DType::f32;
    const char* address = static_cast<const char*>(from.data) + (at << (wide ? 2 : 1));
    unsigned raw;
    asm volatile(
        "{\n"
        ".reg .pred wide;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "@wide ld.global.u32 %0, [%1];\n"
        "@!wide ld.global.u16 %0, [%1];\n"
        "}"
        : "=r"(raw)
        : "l"(address), "r"(static_cast<unsigned>(wide)));
    return raw;
}

__device__ __forceinline__ float to_float(unsigned raw, DType type) {
    const float half = __half2float(__ushort_as_half(static_cast<unsigned short>(raw)));
    return type == DType::f16 ? half : __uint_as_float(type == DType::bf16 ? raw << 16 : raw);
}
// The same value, in fewer instructions for many elements of one dtype: fp32 and bf16 take a shift, whose amount is computed
// once.
__device__ __forceinline__ float to_float_by_shift(unsigned raw, DType type) {
    const float half = __half2float(__ushort_as_half(static_cast<unsigned short>(raw)));
    return type == DType::f16 ? half : __uint_as_float(raw << (type == DType::f32 ? 0 : 16));
}

// An element in flight. 32-bit and 16-bit loads write separate registers: with one register the second load would wait for the
// first.
struct RawElement {
    unsigned wide = 0, narrow = 0;

    __device__ __forceinline__ void load(const Tagged& from, i64 at) {
        const bool is_wide = from.type == DType::f32;
        load(static_cast<const char*>(from.data) + (at << (is_wide ? 2 : 1)), is_wide);
    }
    __device__ __forceinline__ void load(const void* address, bool is_wide) {
        asm volatile(
            "{\n"
            ".reg .pred wide;\n"
            "setp.ne.u32 wide, %3, 0;\n"
            "@wide ld.global.u32 %0, [%2];\n"
            "@!wide ld.global.u16 %1, [%2];\n"
            "}"
            : "+r"(wide), "+r"(narrow)
            : "l"(address), "r"(static_cast<unsigned>(is_wide)));
    }
    __device__ __forceinline__ float to_float(DType type) const { return gdn_cuda::to_float(wide | narrow, type); }
};

// Elements in flight together. One branch on the dtype for all of them: loads of both sizes into one register would wait for
// each other.
template <int kCount>
struct RawElements {
    unsigned bits[kCount];

    // Element i is at `at` + i * stride.
    __device__ __forceinline__ void load(const Tagged& from, i64 at, int stride) {
        if (from.type == DType::f32)
            load_strided(static_cast<const unsigned*>(from.data) + at, stride);
        else
            load_strided(static_cast<const unsigned short*>(from.data) + at, stride);
    }
    // Element i is at offset_of(i); without exists(i), it keeps its bits.
    __device__ __forceinline__ void load(const Tagged& from, const auto& offset_of, const auto& exists) {
        if (from.type == DType::f32)
            load_existing(static_cast<const unsigned*>(from.data), offset_of, exists);
        else
            load_existing(static_cast<const unsigned short*>(from.data), offset_of, exists);
    }
    __device__ __forceinline__ float to_float(int i, DType type) const { return gdn_cuda::to_float(bits[i], type); }

  private:
    __device__ __forceinline__ void load_strided(const auto* from, int stride) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) bits[i] = from[i * stride];
    }
    __device__ __forceinline__ void load_existing(const auto* from, const auto& offset_of, const auto& exists) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (exists(i)) bits[i] = from[offset_of(i)];
    }
};

__device__ __forceinline__ float load_float(const Tagged& from, i64 at) {
    return to_float(load_raw(from, at), from.type);
}
// Rounds to the dtype.
__device__ __forceinline__ void store_float(void* to, DType type, i64 at, float x) {
    if (type == DType::f32)
        static_cast<float*>(to)[at] = x;
    else if (type == DType::bf16)
        static_cast<__nv_bfloat16*>(to)[at] = from_float<__nv_bfloat16>(x);
    else
        static_cast<__half*>(to)[at] = from_float<__half>(x);
}
__device__ __forceinline__ void store_float(const Tagged& to, i64 at, float x) {
    store_float(const_cast<void*>(to.data), to.type, at, x);
}

__device__ __forceinline__ i64 load_index(const Tagged& from, i64 at) {
    const bool wide = from.type == DType::i64;
    const char* address = static_cast<const char*>(from.data) + (at << (wide ? 3 : 2));
    i64 index;
    asm volatile(
        "{\n"
        ".reg .pred wide;\n"
        "setp.ne.u32 wide, %2, 0;\n"
        "@wide ld.global.s64 %0, [%1];\n"
        "@!wide ld.global.s32 %0, [%1];\n"
        "}"
        : "=l"(index)
        : "l"(address), "r"(static_cast<unsigned>(wide)));
    return index;
}

}  // namespace gdn_cuda
