// Powers e^(x l) of complex x for integer l, with phases as exact as x itself, even after a million radians.
//
// A phase is stored in turns, its fraction as 64 bits: multiplying by l then drops whole turns by wrap-around, without
// rounding. It is divided by 2 pi once, in twice fp64 precision, so that its last bit causes less than l 2^-64 turns.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

struct Turns {
    unsigned long long fraction;  // fraction of a turn, times 2^64

    // Valid for phases up to 1e15 radians; beyond that, fp64 does not resolve a turn.
    __device__ __forceinline__ static Turns of(double radians) {
        constexpr double kInverse = 0x1.45f306dc9c883p-3, kResidual = -0x1.6b01ec5417056p-57;  // 1 / (2 pi)
        const double product = radians * kInverse, residual = fma(radians, kResidual, fma(radians, kInverse, -product));
        return {scaled(product - trunc(product)) + scaled(fmax(fmin(residual, 0.5), -0.5))};
    }
    // Sine and cosine after `steps` steps.
    __device__ __forceinline__ void after(unsigned long long steps, double& sine, double& cosine) const {
        sincospi(static_cast<double>(static_cast<long long>(fraction * steps)) * 0x1p-63, &sine, &cosine);
    }
    // To 2 ulp, by minimax polynomials over a quarter turn centred on a multiple of a quarter turn.
    __device__ __forceinline__ void after(unsigned long long steps, float& sine, float& cosine) const {
        constexpr float kHalfPi = 0x1.921fb6p+0f, kResidual = -0x1.777a5cp-25f;
        const unsigned long long turns = fraction * steps, nearest = turns + 0x20000000u;
        const auto to_quarter = static_cast<unsigned>(nearest >> 32) + 0x20000000u;
        const float residual = static_cast<float>(static_cast<int>(turns << 2));  // the only significant bits of small angles
        const float x = fmaf(static_cast<float>(static_cast<int>(nearest >> 30)), 0x1p-32f, residual * 0x1p-64f),
                    square = x * x;
        float odd = fmaf(-0x1.2dc84cp-8f, square, 0x1.466004p-4f), even = fmaf(0x1.d9d57ep-11f, square, -0x1.55c5e0p-6f);
        odd = fmaf(fmaf(odd, square, -0x1.4abbbep-1f), square, kResidual);
        even = fmaf(fmaf(even, square, 0x1.03c1dep-2f), square, -0x1.3bd3ccp+0f);
        const float first = fmaf(x, kHalfPi, x * odd), second = fmaf(even, square, 1.f);
        const bool swap = (to_quarter & 0x40000000u) != 0;
        sine = with_sign(swap ? second : first, to_quarter);
        cosine = with_sign(swap ? first : second, to_quarter + 0x40000000u);
    }

  private:
    // Computed as an absolute value, which may be small: added to 1 it would lose digits.
    __device__ __forceinline__ static unsigned long long scaled(double turns) {
        const auto size = static_cast<unsigned long long>(fabs(turns) * 0x1p64);
        return turns < 0 ? -size : size;
    }
    // x, negated where the top bit is set.
    __device__ __forceinline__ static float with_sign(float x, unsigned bits) {
        return __uint_as_float(__float_as_uint(x) ^ (bits & 0x80000000u));
    }
};

// e^(x l)
template <class Real>
struct Powers {
    Turns turns;
    Real log2_size, residual;  // per step; rounding residual

    // NaN or infinite phases make the powers NaN through log2_size: integer turns cannot express them.
    __device__ __forceinline__ static Powers of(double log_size, double radians) {
        constexpr double kInverse = 0x1.71547652b82fep+0, kResidual = 0x1.777d0ffda0d24p-56;  // 1 / ln 2
        const double finite = log_size < -1e20 ? -1e20 : log_size > 1e20 ? 1e20 : log_size;   // 0 times infinity would be NaN
        const double log2_size = finite * kInverse + radians * 0;
        const auto rounded = static_cast<Real>(log2_size);
        return {Turns::of(radians), rounded,
                static_cast<Real>(fma(finite, kInverse, -static_cast<double>(rounded)) + finite * kResidual)};
    }
    __device__ __forceinline__ void after(unsigned long long steps, Real& re, Real& im) const {
        Real sine, cosine;
        turns.after(steps, sine, cosine);
        const Real size = steps == 0 ? Real{1} : size_after(steps);
        re = size * cosine;
        im = size * sine;
    }

  private:
    // The exponent's product, with its rounding residual. Steps are below 2^48; in fp32 both 24-bit halves are exact.
    __device__ __forceinline__ Real size_after(unsigned long long steps) const {
        constexpr Real kLn2 = static_cast<Real>(0x1.62e42fefa39efp-1);
        if constexpr (sizeof(Real) == sizeof(float)) {
            const auto last = static_cast<float>(static_cast<unsigned>(steps) & 0xffffffu);
            float exponent = log2_size * last, left = fmaf(log2_size, last, -exponent) + residual * last;
            if (const auto most_steps = static_cast<unsigned>(steps >> 24)) [[unlikely]] {
                const float most = static_cast<float>(most_steps) * 0x1p24f, high_product = log2_size * most,
                            low_product = exponent;
                exponent = high_product + low_product;
                left += fmaf(log2_size, most, -high_product) + residual * most + (low_product - (exponent - high_product));
            }
            const float size = exp2_fast(exponent);
            return fmaf(size, left * kLn2, size);
        } else {
            const auto many = static_cast<double>(steps);
            const double exponent = log2_size * many, left = fma(log2_size, many, -exponent) + residual * many;
            const double size = exp2(exponent);
            return fma(size, left * kLn2, size);
        }
    }
};

}  // namespace gdn_cuda
