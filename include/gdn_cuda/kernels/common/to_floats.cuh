// The elements of a short vector in fp32: the second element of a bf16 pair in one instruction, for which the compiler would
// take two.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda {

template <class T, int kCount, bool kAligned>
__device__ __forceinline__ float element_at(const Vector<T, kCount, kAligned>& vector, int i) {
    return vector[i];
}
template <int kCount>
__device__ __forceinline__ float element_at(const Vector<__nv_bfloat16, kCount, true>& vector, int i) {
    const unsigned pair = reinterpret_cast<const Raw<4>*>(vector.items)[i / 2].bits;
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

template <class T, int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<T, kCount, true>& from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
}
// Not by element_at, which gives conv/causal_conv_backward_columns other registers.
template <int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<__nv_bfloat16, kCount, true>& from) {
    static_assert(kCount % 2 == 0);
    const unsigned* const words = reinterpret_cast<const unsigned*>(from.items);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

}  // namespace gdn_cuda
