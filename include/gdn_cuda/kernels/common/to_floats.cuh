// The elements of a short vector in fp32.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda {

template <class T, int kCount, bool kAligned>
__device__ __forceinline__ float element_at(const Vector<T, kCount, kAligned>& vector, int i) {
    return vector[i];
}
// One instruction; the compiler would take two for the second element of a pair.
template <int kCount>
__device__ __forceinline__ float element_at(const Vector<__nv_bfloat16, kCount, true>& vector, int i) {
    const unsigned pair = reinterpret_cast<const unsigned*>(vector.items)[i / 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

template <class T, int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<T, kCount, true>& from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = element_at(from, i);
}

}  // namespace gdn_cuda
