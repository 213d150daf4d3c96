// States in 8 bits: codes from -127 to 127, and an fp32 scale for each group of 32 contiguous columns of a row.
//
//     scale = largest magnitude of the group / 127        code = x / scale, rounded to nearest even        x = scale * code
//
// A group whose scale would be below kSmallestScale is 0: its scale and its codes are. An infinity becomes 127 times
// kLargestScale, beside which the rest of its group is rounded. A NaN makes the scale NaN, and with it the whole group, whose
// codes then mean nothing. So codes of a finite state never give infinities or NaN.
#pragma once

#include <gdn_cuda/kernels/recurrence/state_row.cuh>

namespace gdn_cuda::gdn {

constexpr float kLargestScale = 0x1.020406p+121f;  // the largest whose product with 127 is finite
constexpr float kSmallestScale = 0x1p-126f;        // smaller ones are subnormal

// ---- A group's scale

__device__ __forceinline__ float larger_magnitude(float most, float x) {
    return at_least(most, fabsf(x));  // NaN stays NaN
}
// The largest magnitude of a group that kLanes adjacent lanes hold; all lanes of the warp take part.
template <int kLanes>
__device__ __forceinline__ float largest_of_lanes(float most) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) most = at_least(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}
// The scale of a group whose largest magnitude is `most`.
__device__ __forceinline__ float scale_of_largest(float most) {
    const float scale = at_most(most * (1.f / 127), kLargestScale);
    return scale < kSmallestScale ? 0.f : scale;
}
// What the group's elements are multiplied by before they are rounded.
__device__ __forceinline__ float inverse_of_scale(float scale) {
    return scale == 0.f ? 0.f : reciprocal_fast(scale);
}

// ---- Elements

// Where the scale is the largest, elements may be infinite: afterwards none is.
template <int kCount>
__device__ __forceinline__ void bound_elements(float* x, float scale) {
    constexpr float kLargest = 0x1.fffffep+127f;
    if (scale == kLargestScale)
#pragma unroll
        for (int i = 0; i < kCount; ++i) x[i] = fminf(fmaxf(x[i], -kLargest), kLargest);
}
// A finite element's code in the lowest byte: the sum with 1.5 * 2^23 has no bits for fractions.
__device__ __forceinline__ unsigned code_bits(float x, float inverse) {
    return __float_as_uint(fmaf(x, inverse, 12582912.f));
}
// The codes of four elements, the first one lowest.
__device__ __forceinline__ unsigned pack_codes(const float* x, float inverse) {
    const unsigned low = __byte_perm(code_bits(x[0], inverse), code_bits(x[1], inverse), 0x0040);
    const unsigned high = __byte_perm(code_bits(x[2], inverse), code_bits(x[3], inverse), 0x0040);
    return __byte_perm(low, high, 0x5410);
}
// The i-th code of four. `biased`: the codes plus 128, which are bytes of a mantissa.
__device__ __forceinline__ unsigned bias_codes(unsigned codes) {
    return codes ^ 0x80808080u;
}
// `exponent`: kCodeExponent, which opaque() keeps in a register, so that selectors are immediate operands.
constexpr unsigned kCodeExponent = 0x4b000000u;  // that of 2^23
__device__ __forceinline__ float code_of(unsigned biased, int i, unsigned exponent = kCodeExponent) {
    return __uint_as_float(__byte_perm(biased, exponent, 0x7440 | i)) - 8388736.f;
}

// ---- Rows

// Where a state, or a row of it, begins: in a pool of codes and in its scales. Offsets are those of elements.
struct CodedStates {
    signed char* codes = nullptr;
    float* scales = nullptr;

    __device__ __forceinline__ CodedStates operator+(i64 elements) const {
        return {codes + elements, scales + elements / kCodeGroup};
    }
    __device__ __forceinline__ explicit operator bool() const { return codes != nullptr; }
};

// One lane's slice of a row of codes, with the members of RowSlice. Adjacent lanes hold a group.
template <StateLayout kLayout, bool kAligned, bool kExact>
struct CodeSlice {
    static constexpr int kVectors = kLayout.vectors(), kVector = kLayout.vector, kLanesPerGroup = kCodeGroup / kVector;
    static_assert(kVector % 4 == 0 && kCodeGroup % kVector == 0 && kLanesPerGroup <= kLayout.lanes);
    Vector<signed char, kVector, kAligned> vectors[kVectors];
    float scales[kVectors];

    __device__ __forceinline__ static int column(int i, int lane) { return (i * kLayout.lanes + lane) * kVector; }
    __device__ __forceinline__ static int group(int i, int lane) { return column(i, lane) / kCodeGroup; }
    __device__ __forceinline__ static bool inside(int i, int lane, int dk) { return kExact || column(i, lane) < dk; }

    __device__ __forceinline__ void load_streaming(const CodedStates& row, int lane, int dk) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (inside(i, lane, dk)) {
                vectors[i].load_streaming(row.codes + column(i, lane));
                scales[i] = row.scales[group(i, lane)];
            } else {
                clear(i);
            }
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) clear(i);
    }
    // `exponent`: kCodeExponent, in a register where the compiler would otherwise put every byte's selector into one.
    __device__ __forceinline__ float code(int i, unsigned exponent = kCodeExponent) const {
        return code_of(bias_codes(word(i / kVector, i % kVector / 4)), i % 4, exponent);
    }
    __device__ __forceinline__ float operator[](int i) const { return scales[i / kVector] * code(i); }
    // Stores the row if `exists`; all lanes of the warp take part.
    __device__ __forceinline__ void store_if(bool exists, const CodedStates& row, int lane, int dk,
                                             const float (&s)[kLayout.per_lane]) {
        encode(s);
        write_if(exists, row, lane, dk);
    }
    __device__ __forceinline__ void encode(const float (&s)[kLayout.per_lane]) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            float x[kVector], most = 0.f;
#pragma unroll
            for (int j = 0; j < kVector; ++j) {
                x[j] = s[i * kVector + j];
                most = larger_magnitude(most, x[j]);
            }
            scales[i] = scale_of_largest(largest_of_lanes<kLanesPerGroup>(most));
            const float inverse = inverse_of_scale(scales[i]);
#pragma unroll
            for (int j = 0; j < kVector; j += 4) word(i, j / 4) = pack_codes(x + j, inverse);
            if (scales[i] == kLargestScale) {  // rarely: packed again, so that elements need no other registers
                bound_elements<kVector>(x, scales[i]);
#pragma unroll
                for (int j = 0; j < kVector; j += 4) word(i, j / 4) = pack_codes(x + j, inverse);
            }
        }
    }
    __device__ __forceinline__ void write_if(bool exists, const CodedStates& row, int lane, int dk) const {
        if (!exists) return;
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            if (inside(i, lane, dk)) {
                vectors[i].store_global(row.codes + column(i, lane));
                if (lane % kLanesPerGroup == 0) row.scales[group(i, lane)] = scales[i];
            }
    }

    // The codes of vector i, four a word.
    __device__ __forceinline__ unsigned& word(int i, int j) { return reinterpret_cast<unsigned*>(vectors[i].items)[j]; }
    __device__ __forceinline__ unsigned word(int i, int j) const {
        return reinterpret_cast<const unsigned*>(vectors[i].items)[j];
    }

  private:
    __device__ __forceinline__ void clear(int i) {
#pragma unroll
        for (int j = 0; j < kVector / 4; ++j) word(i, j) = 0;
        scales[i] = 0.f;
    }
};

__device__ __forceinline__ float load_code(const RecurrentStates& states, i64 slot, i64 step, i64 offset) {
    const float scale = states.scales[slot * states.scales_slot + step * states.scales_step + offset / kCodeGroup];
    return scale *
           static_cast<float>(static_cast<const signed char*>(states.data)[slot * states.slot + step * states.step + offset]);
}
// Stores one element's code; a warp stores a group, of which lane 0 stores the scale.
__device__ __forceinline__ void store_code(const RecurrentStates& states, i64 slot, i64 step, i64 offset, float x) {
    const float scale = scale_of_largest(largest_of_lanes<kCodeGroup>(fabsf(x)));
    bound_elements<1>(&x, scale);
    static_cast<signed char*>(states.data)[slot * states.slot + step * states.step + offset] =
        static_cast<signed char>(code_bits(x, inverse_of_scale(scale)));
    if (threadIdx.x % kCodeGroup == 0)
        states.scales[slot * states.scales_slot + step * states.scales_step + offset / kCodeGroup] = scale;
}

// Copies an element's code, and with the first one of a group the scale; from < 0: the element becomes `otherwise`.
__device__ __forceinline__ void copy_code(const RecurrentStates& to, i64 slot, const RecurrentStates& from, i64 from_slot,
                                          i64 offset, float otherwise) {
    static_cast<signed char*>(to.data)[slot * to.slot + offset] =
        from_slot < 0 ? 0 : static_cast<const signed char*>(from.data)[from_slot * from.slot + offset];
    if (offset % kCodeGroup == 0)
        to.scales[slot * to.scales_slot + offset / kCodeGroup] =
            from_slot < 0 ? otherwise : from.scales[from_slot * from.scales_slot + offset / kCodeGroup];
}

// ---- States of any dtype that is in a configuration

template <class T>
struct StatePointerOf {
    using type = T*;
};
template <>
struct StatePointerOf<signed char> {
    using type = CodedStates;
};
template <class T>
using StatePointer = typename StatePointerOf<T>::type;

// The state at an offset of elements, and at one of scales.
template <class T>
__device__ __forceinline__ StatePointer<T> state_pointer(const void* data, i64 at, float* scales, i64 scales_at) {
    T* const elements = static_cast<T*>(const_cast<void*>(data)) + at;
    if constexpr (sizeof(T) == 1)
        return {elements, scales + scales_at};
    else
        return elements;
}
template <class T>
__device__ __forceinline__ StatePointer<T> state_at(const RecurrentStates& states, i64 slot, i64 step) {
    return state_pointer<T>(states.data, slot * states.slot + step * states.step, states.scales,
                            slot * states.scales_slot + step * states.scales_step);
}

template <class T, StateLayout kLayout, bool kAligned, bool kExact>
struct StateSliceOf {
    using type = RowSlice<T, kLayout, kAligned, kExact>;
};
template <StateLayout kLayout, bool kAligned, bool kExact>
struct StateSliceOf<signed char, kLayout, kAligned, kExact> {
    using type = CodeSlice<kLayout, kAligned, kExact>;
};
template <class T, StateLayout kLayout, bool kAligned, bool kExact>
using StateSlice = typename StateSliceOf<T, kLayout, kAligned, kExact>::type;

}  // namespace gdn_cuda::gdn
