// Ā and B̄ of one step with an error of a few ulps of fp32, for kernels that are bound by memory. docs/scan.md has the
// formulas.
//
// A slowly decaying state becomes x + (Ā − 1) x + b, as rounding Ā to fp32 would lose its rate of decay; a fast decaying one
// becomes Ā x + b, as x + (Ā − 1) x would cancel. Complex phases are reduced from the exact product of δ and Im A.
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
// x -> decay(x) + gain u B
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

// The offset form is used for |z| below this. Ā − 1 then has a relative error of 1e-7, which stays 1e-7 while a state decays.
inline constexpr float kOffsetBelow = 0.25f;

// e^z − 1 for |z| < kOffsetBelow, by a minimax polynomial.
__device__ __forceinline__ float less_one_of_small(float z) {
    float p = 0x1.11bd3p-7f;
    p = fmaf(p, z, 0x1.56385cp-5f);
    p = fmaf(p, z, 0x1.555512p-3f);
    p = fmaf(p, z, 0x1.ffff9p-2f);
    return z * fmaf(p, z, 1.f);
}

__device__ __forceinline__ Decay<float> exact_exp(float z) {
    const bool offset = fabsf(z) < kOffsetBelow;
    return {offset ? less_one_of_small(z) : exp2_fast(z * kLog2e), offset};
}

// 2^z, by the same polynomial: with log2(e) δ computed once per row, it saves a product for each state element.
__device__ __forceinline__ Decay<float> exact_exp2(float z) {
    const bool offset = fabsf(z) < kOffsetBelow * kLog2e;
    float p = 0x1.5e645p-10f;
    p = fmaf(p, z, 0x1.3bfc56p-7f);
    p = fmaf(p, z, 0x1.c6b034p-5f);
    p = fmaf(p, z, 0x1.ebfb74p-3f);
    const float less_one = z * fmaf(p, z, 0x1.62e43p-1f);
    return {offset ? less_one : exp2_fast(z), offset};
}

// δ A, with the phase in turns: its fraction, within ±1/2.
struct Exponent {
    float real, imaginary, turns;

    __device__ __forceinline__ static Exponent of(float delta, const Complex& A) {
        constexpr float kInverse = 0x1.45f306p-3f, kInverseResidual = 0x1.b9391p-28f;  // 1 / (2 pi)
        const float phase = delta * A.im, residual = fmaf(delta, A.im, -phase);
        const float whole = rintf(phase * kInverse);
        const float turns = fmaf(phase, kInverse, -whole) + fmaf(phase, kInverseResidual, residual * kInverse);
        return {delta * A.re, phase, turns};
    }
};

__device__ __forceinline__ Decay<Complex> exact_exp(const Exponent& z) {
    float sine, cosine;
    sincos_half_turns(z.turns, sine, cosine);
    const float size = exp2_fast(z.real * kLog2e), scaled_sine = size * sine;
    const bool offset = fabsf(z.real) < kOffsetBelow;
    return {{fmaf(-scaled_sine, sine, offset ? less_one_of_small(z.real) : size), scaled_sine * cosine}, offset};
}

// e^z − 1
__device__ __forceinline__ float less_one(const Decay<float>& power) {
    return power.offset ? power.rate : power.rate - 1.f;
}
__device__ __forceinline__ Complex less_one(const Decay<Complex>& power) {
    return power.offset ? power.rate : Complex{power.rate.re - 1.f, power.rate.im};
}

// x / y, for y whose square neither overflows nor underflows.
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

// With rglru, A is the logarithm.
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
        result.decay = {__fdividef(offset ? -1.f : fmaf(delta, delta, -0.5f), fmaf(delta, delta, 0.5f)), offset};
        result.gain = 1.f;
    } else if constexpr (kKind == Discretization::rglru) {
        result.decay = exact_exp(delta == 0.f ? 0.f : delta * A);
        const float less = less_one(result.decay);
        result.gain = sqrtf(-less * (less + 2.f));  // √(1 − Ā²)
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
        const float half = 0.5f * delta;  // by fma, as products of ComplexNumber
        result.gain = quotient({delta, 0.f}, {fmaf(-half, A.re, 1.f), -half * A.im});
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

// Ā x + drive
__device__ __forceinline__ float advanced(float x, const Decay<float>& decay, float drive) {
    const float moved = fmaf(decay.rate, x, drive);
    return decay.offset ? moved + x : moved;
}
__device__ __forceinline__ Complex advanced(const Complex& x, const Decay<Complex>& decay, const Complex& drive) {
    const Complex moved = drive.plus(decay.rate, x);
    return decay.offset ? moved + x : moved;
}

}  // namespace gdn_cuda::scan
