// Parts of all structured kernels: real and complex arithmetic in fp32 or fp64, typed loads and stores, row offsets of
// operands.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

__device__ __forceinline__ float reciprocal(float x) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ double reciprocal(double x) {
    return 1.0 / x;
}
// For normal x with a normal reciprocal: .ftz saves the four instructions that handle subnormals.
__device__ __forceinline__ float reciprocal_in_range(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ double reciprocal_in_range(double x) {
    return reciprocal(x);
}
// False for zero and subnormal x, whose reciprocal may overflow; true for infinity and NaN.
__device__ __forceinline__ bool has_reciprocal(float x) {
    return !(fabsf(x) < 0x1p-126f);
}
__device__ __forceinline__ bool has_reciprocal(double x) {
    return !(fabs(x) < 0x1p-1022);
}
// Whether the reciprocal of a sum of squares neither overflows nor underflows. False for NaN.
__device__ __forceinline__ bool in_range(float square) {
    return square > 1e-36f && square < 1e36f;
}
__device__ __forceinline__ bool in_range(double square) {
    return square > 1e-290 && square < 1e290;
}

template <class Real>
struct Complex {
    Real re, im;
};
template <bool kWide>
struct RealOf {
    using type = float;
};
template <>
struct RealOf<true> {
    using type = double;
};

// (x.re + i x.im) / (y.re + i y.im) without intermediate overflow (Smith); 0 where one part of y is infinite.
__device__ __forceinline__ Complex<double> quotient(const Complex<double>& x, const Complex<double>& y) {
    const bool wide = fabs(y.re) >= fabs(y.im);
    const double big = wide ? y.re : y.im, small = wide ? y.im : y.re, ratio = small / big,
                 inverse = 1.0 / (big + ratio * small);
    if (wide) return {(x.re + x.im * ratio) * inverse, (x.im - x.re * ratio) * inverse};
    return {(x.re * ratio + x.im) * inverse, (x.im * ratio - x.re) * inverse};
}

// Elements of dtype kIo in memory, loaded as fp32 or fp64. Real elements have im = 0.
template <DType kIo>
struct ElementType {
    static constexpr bool kComplex = is_complex(kIo), kWide = kIo == DType::f64 || kIo == DType::c128;
    using Real = typename RealOf<kWide>::type;
    using Number = Complex<Real>;
    struct alignas(2 * sizeof(Real)) Pair {  // one vector access
        Real re, im;
    };

    template <class Wide = Real>
    __device__ __forceinline__ static Complex<Wide> load(const void* from, i64 at) {
        if constexpr (kComplex) {
            const Pair pair = static_cast<const Pair*>(from)[at];
            return {static_cast<Wide>(pair.re), static_cast<Wide>(pair.im)};
        } else if constexpr (kWide) {
            return {static_cast<Wide>(static_cast<const double*>(from)[at]), Wide{}};
        } else {
            return {static_cast<Wide>(to_float(static_cast<const Storage<kIo>*>(from)[at])), Wide{}};
        }
    }
    __device__ __forceinline__ static void store(void* to, i64 at, const Number& x) {
        if constexpr (kComplex)
            static_cast<Pair*>(to)[at] = {x.re, x.im};
        else if constexpr (kWide)
            static_cast<double*>(to)[at] = x.re;
        else
            static_cast<Storage<kIo>*>(to)[at] = from_float<Storage<kIo>>(x.re);
    }
};

// `at` receives the offset of a row of operand `of`.
struct RowOffset {
    const BroadcastOperand& of;
    i64& at;
};
// Computes the offset of a row in several operands, in one pass over the leading dimensions. There are fewer than 2^31 rows
// (csrc's broadcast.hpp), so 32 bits suffice: a 64-bit division is a function call, which spills registers.
template <class Args, class... Begins>
__device__ __forceinline__ void set_row_offsets(const Args& args, unsigned row, Begins... begins) {
    ((begins.at = 0), ...);
#pragma unroll 1
    for (int d = args.leading - 1; d >= 0; --d) {
        const auto size = static_cast<unsigned>(args.size[d]), outer = d == 0 ? 0 : row / size, i = row - outer * size;
        ((begins.at += i * begins.of.stride[d]), ...);
        row = outer;
    }
}
template <class Args>
__device__ __forceinline__ i64 row_offset(const Args& args, const BroadcastOperand& operand, unsigned row) {
    i64 at;
    set_row_offsets(args, row, RowOffset{operand, at});
    return at;
}

}  // namespace gdn_cuda::structured
