// Conjugate pairs of poles for structured/cauchy_backward in fp32: the terms of both poles of a pair, for the gradients of its
// residue and of its pole, from one reciprocal. CauchyAxisPairs is for points on the imaginary axis, as in S4.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy/pairs.cuh>

namespace gdn_cuda::structured {

// Arbitrary points. With w = r + im, a = Re z - r, s = a + iy and R = 1 / ((z - w) (z - w~)) = 1 / (s^2 + m^2), the two
// distances' reciprocals have the sum 2 s R and the difference 2im R, and their squares the sum 2 R - 4 m^2 R^2 and the
// difference 4im s R^2. So a pole's gradients are combinations of four sums,
//
//     Re g~ (R, s R, R^2, s R^2)
//
// none of whose terms, with its factor, exceeds twice the larger of |g / (z - w)| and |g / (z - w~)|, or of their squares.
// |R|^2 is the hardware reciprocal itself, which saves an operation in R^2.
struct CauchyPairs : CauchyPairsAnywhere {
    enum Sum { kR, kSR, kRR, kSRR, kSums };

    struct Point {
        float x, y, two_y, re, im, re_y, im_y;  // the point, then its gradient and products of both

        __device__ __forceinline__ Point(const Complex<float>& z, const Complex<float>& g)
            : x(z.re), y(z.im), two_y(2 * y), re(scaled(g.re)), im(scaled(g.im)), re_y(re * y), im_y(im * y) {}
    };

    __device__ __forceinline__ static void add(float* sums, const Pole& pole, const Point& point) {
        const Reciprocal one(pole, point.x, point.y, point.two_y);
        const float a = one.a, p = one.square, r = one.re, r_im = one.im;             // R = r - i r_im
        const float s = point.re * a + point.im_y, s_im = point.re_y - point.im * a;  // g~ s = s + i s_im
        const float twice = r + r, rr = twice * r - p, rr_im = twice * r_im;          // R^2 = rr - i rr_im
        sums[kR] = fma(-point.im, r_im, fma(point.re, r, sums[kR]));
        sums[kSR] = fma(s_im, r_im, fma(s, r, sums[kSR]));
        sums[kRR] = fma(-point.im, rr_im, fma(point.re, rr, sums[kRR]));
        sums[kSRR] = fma(s_im, rr_im, fma(s, rr, sums[kSRR]));
    }
    // Adds these sums to CauchyBackward's `first` and `second`, which already have the sums over other points.
    __device__ __forceinline__ static void combine(Complex<float>& first, Complex<float>& second, const float* sums,
                                                   const Complex<float>& w) {
        const float m = w.im;
        first.re += 2 * sums[kSR] * kUnit;
        first.im -= 2 * m * sums[kR] * kUnit;
        second.re += 2 * (sums[kR] - 2 * m * m * sums[kRR]) * kUnit;
        second.im -= 4 * m * sums[kSRR] * kUnit;
    }
};

// Points on the imaginary axis, z = iy. With w = -a + im, den = a^2 + m^2 - y^2 and p = 1 / (den^2 + 4 a^2 y^2), which is
// |1 / ((z - w) (z - w~))|^2, a pole's gradients are combinations of eight sums of
//
//     Re g (h, h^2)     y^2 Re g (p, hp)     y Im g (p, h, h^2, hp)          h = den p
//
// No term exceeds a few times the larger of |g / (z - w)| and |g / (z - w~)|, or of their squares. den is one fma of y and
// a sum kept in two parts, so a pole close to its point loses no digits. A lower bound for |w|^2 keeps hp, a term of degree
// six, from underflow.
struct CauchyAxisPairs : CauchyPairLimits {
    static constexpr float kLeastSquare = 0x1p-40f;
    enum Sum { kReH, kReHH, kReP, kReHP, kImP, kImH, kImHH, kImHP, kSums };

    __device__ __forceinline__ static bool takes(const Complex<float>& z) { return (z.re == 0) & (fabs(z.im) <= kLargest); }
    struct Pole {
        float square, residual, four_a_squared;  // a^2 + m^2, its rounding error, and 4 a^2

        Pole() = default;
        __device__ __forceinline__ explicit Pole(const Complex<float>& w) {
            const SquareInParts x(w.re), y(w.im);
            square = x.square + y.square;
            const float part = square - x.square;
            residual = (x.square - (square - part)) + (y.square - part) + (x.residual + y.residual);
            four_a_squared = 4 * x.square;
        }
        __device__ __forceinline__ bool fits() const { return square >= kLeastSquare && square <= kLargest * kLargest; }
    };
    struct Point {
        float y, y_squared, re, re_y_squared, im_y;

        __device__ __forceinline__ Point(const Complex<float>& z, const Complex<float>& g)
            : y(z.im), y_squared(y * y), re(scaled(g.re)), re_y_squared(re * y_squared), im_y(g.im * scaled(y)) {}
    };

    __device__ __forceinline__ static void add(float* sums, const Pole& pole, const Point& point) {
        const float den = fma(-point.y, point.y, pole.square) + pole.residual,
                    p = reciprocal_in_range(den * den + pole.four_a_squared * point.y_squared), h = den * p, hh = h * h,
                    hp = h * p;
        sums[kReH] += point.re * h;
        sums[kReHH] += point.re * hh;
        sums[kReP] += point.re_y_squared * p;
        sums[kReHP] += point.re_y_squared * hp;
        sums[kImP] += point.im_y * p;
        sums[kImH] += point.im_y * h;
        sums[kImHH] += point.im_y * hh;
        sums[kImHP] += point.im_y * hp;
    }
    // As CauchyPairs::combine(). hh = den^2 p^2 is (p + (den^2 - 4 a^2 y^2) p^2) / 2.
    __device__ __forceinline__ static void combine(Complex<float>& first, Complex<float>& second, const float* sums,
                                                   const Complex<float>& w) {
        const float a = -w.re, m = w.im, re = 2 * sums[kReHH] - (sums[kReP] + sums[kReH]) / (a * a + m * m),
                    im = 2 * sums[kImHH] - sums[kImP], cross = 2 * (2 * a * sums[kImP] - sums[kReH]);
        first.re += (2 * (2 * a * sums[kReP] + sums[kImH]) - a * cross) * kUnit;
        first.im += m * cross * kUnit;
        second.re += (2 * (sums[kReH] - 2 * m * m * re) - 4 * a * (sums[kImP] - 4 * m * m * sums[kImHP])) * kUnit;
        second.im -= 4 * m * (a * (re + 4 * sums[kReHP]) + (im - 4 * a * a * sums[kImHP])) * kUnit;
    }
};

}  // namespace gdn_cuda::structured
