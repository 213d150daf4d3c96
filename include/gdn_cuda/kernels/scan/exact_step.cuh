// Ā and B̄ of one step, to a few ulps of fp32, for kernels that are bound by memory. docs/scan.md has the formulas.
//
// A state that decays slowly becomes x + (Ā − 1) x + b, as Ā rounded to fp32 would lose the rate of its decay; one that decays
// fast becomes Ā x + b, as x + (Ā − 1) x would cancel. Complex phases are reduced from the exact product of δ and Im A.
#pragma once

#include <gdn_cuda/kernels/scan/discretization.cuh>

namespace gdn_cuda::scan {

using Complex = ComplexNumber<float>;

// Multiplication by Ā: x -> rate x + (offset ? x : 0), so rate is Ā − 1 or Ā.
template <class T>
struct Decay {
    T rate;
    bool offset;
};
// x -> decay(x) + gain B u
template <class T>
struct ExactStep {
    Decay<T> decay;
    T gain;

    __device__ __forceinline__ void set_gain(float real) {
        if constexpr (sizeof(T) == sizeof(float))
            gain = real;
        else
            gain = {real, 0.f};
    }
};

// ---- e^z

// The offset is taken where |z| < ln 2 / 2. Powers stay between e^-87, which makes any number nothing, and e^88.
__device__ __forceinline__ Decay<float> exact_exp(float z) {
    constexpr float kLog2eRest = 0x1.4ae0bep-26f, kRounding = 0x1.8p+23f;
    constexpr float kLowest = -87.f, kHighest = 88.f;
    const float clamped = at_most(at_least(z, kLowest), kHighest);
    const float shifted = fmaf(clamped, kLog2e, kRounding);  // the last bits are the nearest integer
    const float power = shifted - kRounding;
    const float f = fmaf(clamped, kLog2eRest, fmaf(clamped, kLog2e, -power));
    // (2^f − 1) / f by a minimax polynomial over ±1/2, to 1.1e-8.
    float p = 0x1.4308fap-13f;
    p = fmaf(p, f, 0x1.5f07b4p-10f);
    p = fmaf(p, f, 0x1.3b2ba0p-7f);
    p = fmaf(p, f, 0x1.c6af6ep-5f);
    p = fmaf(p, f, 0x1.ebfbdep-3f);
    p = fmaf(p, f, 0x1.62e430p-1f);
    p *= f;
    const bool offset = power == 0.f;
    const float scale = __int_as_float((__float_as_int(shifted) << 23) + 0x3f800000);
    return {fmaf(scale, p, offset ? 0.f : scale), offset};
}

// δ A, with the phase in turns: its fraction, within ±1/2.
struct Exponent {
    float real, imaginary, turns;

    __device__ __forceinline__ static Exponent of(float delta, const Complex& A) {
        constexpr float kInverse = 0x1.45f306p-3f, kInverseRest = 0x1.b9391p-28f;  // 1 / (2 pi)
        const float phase = delta * A.im, rest = fmaf(delta, A.im, -phase);
        const float whole = rintf(phase * kInverse);
        const float turns = fmaf(phase, kInverse, -whole) + fmaf(phase, kInverseRest, rest * kInverse);
        return {delta * A.re, phase, turns};
    }
};

__device__ __forceinline__ Decay<Complex> exact_exp(const Exponent& z) {
    constexpr float kSmall = 0.05f;  // turns
    const Decay<float> size = exact_exp(z.real);
    const Complex unit = unit_at(2.f * z.turns);
    if (size.offset && fabsf(z.turns) < kSmall) {
        const float below_one = -unit.im * __fdividef(unit.im, 1.f + unit.re);  // cos − 1
        return {{fmaf(size.rate, unit.re, below_one), fmaf(size.rate, unit.im, unit.im)}, true};
    }
    const float rate = size.offset ? 1.f + size.rate : size.rate;
    return {unit * rate, false};
}

// e^z − 1
__device__ __forceinline__ float less_one(const Decay<float>& power) {
    return power.offset ? power.rate : power.rate - 1.f;
}
__device__ __forceinline__ Complex less_one(const Decay<Complex>& power) {
    return power.offset ? power.rate : Complex{power.rate.re - 1.f, power.rate.im};
}

// For divisors whose square neither overflows nor vanishes.
__device__ __forceinline__ Complex quotient(const Complex& x, const Complex& y) {
    return x * y.conjugate() * __fdividef(1.f, y.square());
}

// (e^z − 1) / z, where e^z is known
__device__ __forceinline__ float mean_exp(float z, const Decay<float>& power) {
    constexpr float kSmall = 0.03f;  // below it the series is exact to fp32
    const float series = fmaf(z * 0.5f, fmaf(z * (1.f / 3), fmaf(z, 0.25f, 1.f), 1.f), 1.f);
    return fabsf(z) < kSmall ? series : __fdividef(less_one(power), z);
}
__device__ __forceinline__ Complex mean_exp(const Exponent& z, const Decay<Complex>& power) {
    constexpr float kSmall = 0.1f;
    const Complex w{z.real, z.imaginary};
    if (fmaxf(fabsf(w.re), fabsf(w.im)) >= kSmall) return quotient(less_one(power), w);
    const Complex one{1.f, 0.f};
    Complex series = one.plus(w, {1.f / 6, 0.f});
#pragma unroll
    for (int n = 5; n >= 2; --n) series = one.plus(w * (1.f / n), series);
    return series;
}

// ---- The discretizations

template <Discretization kKind>
__device__ __forceinline__ ExactStep<float> exact_step(float delta, float delta_a, float A) {
    ExactStep<float> result;
    if constexpr (kKind == Discretization::bilinear) {
        constexpr float kSmall = 0.5f;
        const float z = delta_a * A;
        const bool offset = fabsf(z) < kSmall;
        result.decay = {__fdividef(offset ? z : fmaf(0.5f, z, 1.f), fmaf(-0.5f, z, 1.f)), offset};
        result.gain = __fdividef(delta, fmaf(-0.5f * delta, A, 1.f));
    } else if constexpr (kKind == Discretization::s7) {
        constexpr float kLarge = 3.f;
        const float square = delta * delta;
        const bool offset = square > kLarge;
        result.decay = {__fdividef(offset ? -1.f : square - 0.5f, square + 0.5f), offset};
        result.gain = 1.f;
    } else if constexpr (kKind == Discretization::rglru) {
        result.decay = exact_exp(delta == 0.f ? 0.f : delta * logf(A));
        const float less = less_one(result.decay);
        result.gain = sqrtf(-less * (less + 2.f));  // of 1 − Ā²
    } else {
        result.decay = exact_exp(delta_a * A);
        result.gain = kKind == Discretization::mamba ? delta : 1.f;
        if constexpr (kKind == Discretization::zoh) {
            const float z = delta * A;
            result.gain = delta * mean_exp(z, delta == delta_a ? result.decay : exact_exp(z));
        }
    }
    return result;
}

// s7 and rglru are real.
template <Discretization kKind>
__device__ __forceinline__ ExactStep<Complex> exact_step(float delta, float delta_a, const Complex& A) {
    ExactStep<Complex> result;
    if constexpr (kKind == Discretization::bilinear) {
        constexpr float kSmall = 0.5f;
        const Complex z = A * delta_a, one{1.f, 0.f};
        result.decay.offset = fmaxf(fabsf(z.re), fabsf(z.im)) < kSmall;
        result.decay.rate = quotient(result.decay.offset ? z : one + z * 0.5f, one - z * 0.5f);
        result.gain = quotient({delta, 0.f}, one - A * (0.5f * delta));
    } else {
        const Exponent z = Exponent::of(delta_a, A);
        result.decay = exact_exp(z);
        result.set_gain(kKind == Discretization::mamba ? delta : 1.f);
        if constexpr (kKind == Discretization::zoh) {
            if (delta == delta_a) {
                result.gain = mean_exp(z, result.decay) * delta;
            } else {
                const Exponent w = Exponent::of(delta, A);
                result.gain = mean_exp(w, exact_exp(w)) * delta;
            }
        }
    }
    return result;
}

// Ā x + gain · drive
__device__ __forceinline__ float advanced(float x, const ExactStep<float>& by, float drive) {
    return fmaf(by.decay.rate, x, by.gain * drive) + (by.decay.offset ? x : 0.f);
}
__device__ __forceinline__ Complex advanced(const Complex& x, const ExactStep<Complex>& by, const Complex& drive) {
    const Complex moved = (by.gain * drive).plus(by.decay.rate, x);
    return by.decay.offset ? moved + x : moved;
}

}  // namespace gdn_cuda::scan
