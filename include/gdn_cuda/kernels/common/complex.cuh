// Complex arithmetic in fp32 or fp64.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

template <class Real>
struct ComplexNumber {
    Real re, im;

    __device__ __forceinline__ ComplexNumber operator+(const ComplexNumber& y) const { return {re + y.re, im + y.im}; }
    __device__ __forceinline__ ComplexNumber operator-(const ComplexNumber& y) const { return {re - y.re, im - y.im}; }
    __device__ __forceinline__ ComplexNumber operator*(const ComplexNumber& y) const {
        return {fma(-im, y.im, re * y.re),
                fma(im, y.re, re * y.im)};  // explicit fma: the compiler's contraction would differ between kernels
    }
    __device__ __forceinline__ ComplexNumber operator*(Real y) const { return {re * y, im * y}; }
    __device__ __forceinline__ ComplexNumber conjugate() const { return {re, -im}; }
    __device__ __forceinline__ Real square() const { return fma(im, im, re * re); }

    // *this + x y and *this - x y in four FMAs each; the operators take six operations.
    __device__ __forceinline__ ComplexNumber plus(const ComplexNumber& x, const ComplexNumber& y) const {
        return {fma(x.re, y.re, fma(-x.im, y.im, re)), fma(x.re, y.im, fma(x.im, y.re, im))};
    }
    __device__ __forceinline__ ComplexNumber minus(const ComplexNumber& x, const ComplexNumber& y) const {
        return {fma(-x.re, y.re, fma(x.im, y.im, re)), fma(-x.re, y.im, fma(-x.im, y.re, im))};
    }
};

// e^(i pi x), accurate to an ulp.
__device__ __forceinline__ ComplexNumber<float> unit_at(float half_turns) {
    float sine, cosine;
    sincospif(half_turns, &sine, &cosine);
    return {cosine, sine};
}
__device__ __forceinline__ ComplexNumber<double> unit_at(double half_turns) {
    double sine, cosine;
    sincospi(half_turns, &sine, &cosine);
    return {cosine, sine};
}

}  // namespace gdn_cuda
