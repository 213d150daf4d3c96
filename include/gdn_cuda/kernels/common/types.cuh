// Types for host and device. Compiled by g++, nvcc and NVRTC, hence no standard library.
#pragma once

#include <gdn_cuda/fields.hpp>

#ifdef __CUDACC__
#define GDN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GDN_HOST_DEVICE inline
#endif

namespace gdn_cuda {

// Architecture compiled for, as 10 * major + minor; 0 on the host.
#ifdef __CUDA_ARCH__
inline constexpr int kCompiledCapability = __CUDA_ARCH__ / 10;
#else
inline constexpr int kCompiledCapability = 0;
#endif

inline constexpr int kFirstWithDependentLaunch = 90;  // capability; dependent_launch.cuh

using i64 = long long;

// Dynamic shared memory per block that every GPU from sm_80 on allows.
inline constexpr int kSharedBytesEverywhere = 99 * 1024;

enum class DType : int { f32, bf16, f16, i32, i64, f64, c64, c128, i8 };

GDN_HOST_DEVICE constexpr int bytes_of(DType type) {
    switch (type) {
        case DType::i8:
            return 1;
        case DType::bf16:
        case DType::f16:
            return 2;
        case DType::f32:
        case DType::i32:
            return 4;
        case DType::i64:
        case DType::f64:
        case DType::c64:
            return 8;
        case DType::c128:
            return 16;
    }
    return 0;
}

GDN_HOST_DEVICE constexpr bool is_complex(DType type) {
    return type == DType::c64 || type == DType::c128;
}

GDN_HOST_DEVICE constexpr i64 ceil_div(i64 a, i64 b) {
    return (a + b - 1) / b;
}

// Scalars or indices of a dtype known at run time, which saves a kernel instantiation per dtype; raw_element.cuh loads them.
// For a few values per head or sequence.
struct Tagged {
    const void* data = nullptr;
    DType type = DType::f32;
};

// (batch, token, head, d) with d contiguous; strides in elements. Packed tensors have batch stride 0.
struct Rows {
    void* data = nullptr;
    i64 batch = 0, token = 0, head = 0;
};

// Scalars (batch, token, head); strides in elements.
struct Scalars {
    Tagged values;
    i64 batch = 0, token = 0, head = 0;
};

}  // namespace gdn_cuda
