// The type that stores a dtype's elements, and its conversions to and from fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

template <DType>
struct StorageOf;
template <>
struct StorageOf<DType::f32> {
    using type = float;
};
template <>
struct StorageOf<DType::bf16> {
    using type = __nv_bfloat16;
};
template <>
struct StorageOf<DType::f16> {
    using type = __half;
};
template <>
struct StorageOf<DType::i8> {
    using type = signed char;
};
template <DType kType>
using Storage = typename StorageOf<kType>::type;

__device__ __forceinline__ float to_float(float x) {
    return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16(x);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half(x);
}

}  // namespace gdn_cuda
