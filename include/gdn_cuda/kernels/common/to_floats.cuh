// Converts the elements of a short vector to fp32.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda {

template <class T, int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<T, kCount, true>& from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
}
// Both bf16 elements of a word, one instruction each.
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
