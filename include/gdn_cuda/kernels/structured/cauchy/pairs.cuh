// Formulas for conjugate pairs of poles, forward and backward, in fp32.
#pragma once

#include <gdn_cuda/kernels/structured/common.cuh>

namespace gdn_cuda::structured {

// Magnitudes are bounded and terms are scaled by a power of two, so that no significant term underflows. Overflow, for example
// a point on a pole, leaves sums that are not finite; the caller then recomputes them by a slower formula.
struct CauchyPairLimits {
    static constexpr float kLargest = 16384, kUnit = 0x1p-32f;

    __device__ __forceinline__ static float scaled(float x) { return x * (1 / kUnit); }
};

// m^2 as square + residual: a difference from it loses no digits for a point close to a pole.
struct SquareInParts {
    float square, residual;

    SquareInParts() = default;
    __device__ __forceinline__ explicit SquareInParts(float x) : square(__fmul_rn(x, x)), residual(fma(x, x, -square)) {}
};

// For arbitrary points, on the imaginary axis or off it.
struct CauchyPairsAnywhere : CauchyPairLimits {
    __device__ __forceinline__ static bool takes(const Complex<float>& z) {
        return (fabs(z.re) <= kLargest) & (fabs(z.im) <= kLargest);
    }
    struct Pole {
        float re;
        SquareInParts im_squared;

        Pole() = default;
        __device__ __forceinline__ explicit Pole(const Complex<float>& w) : re(w.re), im_squared(w.im) {}
        __device__ __forceinline__ bool fits() const {
            return fabs(re) <= kLargest && im_squared.square <= kLargest * kLargest;
        }
    };
    // (z - w) (z - w~) = s^2 + m^2, with w = r + im, a = Re z - r and s = a + iy; and its reciprocal re - i im. The real part
    // is a^2 plus one fma of y and of m^2 in two parts: a pole close to its point loses no digits. `square` is |reciprocal|^2.
    struct Reciprocal {
        float a, re, im, square;

        __device__ __forceinline__ Reciprocal(const Pole& pole, float x, float y, float two_y) : a(x - pole.re) {
            const float den_im = a * two_y, den = fma(a, a, fma(-y, y, pole.im_squared.square) + pole.im_squared.residual);
            square = reciprocal_in_range(den * den + den_im * den_im);
            re = den * square;
            im = den_im * square;
        }
    };
};

}  // namespace gdn_cuda::structured
