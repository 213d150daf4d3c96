// A step of one state, x_t = Ā_t x_{t−1} + (B̄u)_t, from its pole A, its B and the inputs that all states of a channel share.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

// ---- Functions of real and of complex numbers

template <bool kComplex>
struct NumberOf {
    using type = float;
};
template <>
struct NumberOf<true> {
    using type = ComplexNumber<float>;
};
template <bool kComplex>
using Number = typename NumberOf<kComplex>::type;

// Number i of an array of floats: a float, or a (real, imaginary) pair.
template <class Number, int kCount>
__device__ __forceinline__ Number number_of(const float (&x)[kCount], int i) {
    if constexpr (sizeof(Number) == sizeof(float))
        return x[i];
    else
        return {x[2 * i], x[2 * i + 1]};
}

__device__ __forceinline__ float real_part(float x) {
    return x;
}
__device__ __forceinline__ float real_part(ComplexNumber<float> x) {
    return x.re;
}

// Re(x z), and y + Re(x z)
__device__ __forceinline__ float real_product(float x, float z) {
    return x * z;
}
__device__ __forceinline__ float real_product(ComplexNumber<float> x, ComplexNumber<float> z) {
    return fmaf(x.re, z.re, -x.im * z.im);
}
__device__ __forceinline__ float add_real_product(float y, float x, float z) {
    return fmaf(x, z, y);
}
__device__ __forceinline__ float add_real_product(float y, ComplexNumber<float> x, ComplexNumber<float> z) {
    return fmaf(x.re, z.re, fmaf(-x.im, z.im, y));
}
__device__ __forceinline__ float plus_product(float y, float x, float z) {
    return fmaf(x, z, y);
}
__device__ __forceinline__ ComplexNumber<float> plus_product(ComplexNumber<float> y, ComplexNumber<float> x,
                                                             ComplexNumber<float> z) {
    return y.plus(x, z);
}
__device__ __forceinline__ ComplexNumber<float> inverse(ComplexNumber<float> x) {
    return x.conjugate() * reciprocal_fast(x.square());
}

// ---- Exponentials

__device__ __forceinline__ float expm1_fast(float z) {
    return fabsf(z) < 0.5f ? expm1_small(z) : exp2_fast(z * kLog2e) - 1.f;
}

// softplus, with a relative error of 1e-6, below −15 of 4e-6, as the exponent is rounded; above 20 it is x. The polynomial is
// that of log1p_of_unit with one degree less, as these kernels are bound by instructions.
__device__ __forceinline__ float softplus_fast(float x) {
    const float y = exp2_fast(-fabsf(x) * kLog2e);
    float p = -0.0085391978f;  // ln(1 + y) / y on [0, 1], a minimax polynomial: 2e-7
    p = fmaf(p, y, 0.0440895915f);
    p = fmaf(p, y, -0.107681653f);
    p = fmaf(p, y, 0.177452369f);
    p = fmaf(p, y, -0.244954611f);
    p = fmaf(p, y, 0.332754794f);
    p = fmaf(p, y, -0.499974054f);
    p = fmaf(p, y, 0.999999806f);
    return fmaf(p, y, fmaxf(x, 0.f));
}
__device__ __forceinline__ float silu_fast(float x) {
    return x * reciprocal_fast(1.f + exp2_fast(-x * kLog2e));
}

// For |x| <= π, with an error of 5e-7.
__device__ __forceinline__ float sine_fast(float x) {
    float y;
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float cosine_fast(float x) {
    float y;
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// sine, cosine = √2 sin π f, √2 cos π f for |f| <= ½, by minimax polynomials with an error of 2e-7. So cos 2π f = 1 − sine² and
// sin 2π f = sine × cosine.
__device__ __forceinline__ void sincos_half_turns(float f, float& sine, float& cosine) {
    const float square = f * f;
    float odd = 0.109824516f, even = -0.0348285f;
    odd = fmaf(odd, square, -0.84611166f);
    odd = fmaf(odd, square, 3.606354f);
    odd = fmaf(odd, square, -7.308246f);
    odd = fmaf(odd, square, 4.442883f);
    even = fmaf(even, square, 0.33244562f);
    even = fmaf(even, square, -1.8883145f);
    even = fmaf(even, square, 5.739885f);
    even = fmaf(even, square, -6.978864f);
    sine = f * odd;
    cosine = fmaf(even, square, 1.41421356f);
}

// ---- Steps

// A step's inputs that all states of a channel share.
//     exponential     step = δ_A       input = δu, or u for dirac
//     zoh, bilinear   step = δ_A       input = u     size = δ
//     s7              step = Ā − 1     input = u
//     rglru           step = δ         input = u
// A step and an input of 0 leave the states as they are.
struct ChannelStep {
    float step, input, size;
};

// x ← decay x + drive; or if decay is relative (Ā − 1), x ← x + (decay x + drive), which is accurate for Ā near one.
template <class T>
struct Step {
    T decay, drive;
};
template <bool kRelative, class T>
__device__ __forceinline__ T after(T x, const Step<T>& step) {
    const T next = plus_product(step.drive, step.decay, x);
    if constexpr (kRelative)
        return x + next;
    else
        return next;
}

// A sum, and its rounding error.
struct ExactSum {
    float sum = 0.f, residual = 0.f;

    __device__ __forceinline__ void add(float x) {
        const float next = sum + x, added = next - sum;
        residual += (sum - (next - added)) + (x - added);
        sum = next;
    }
    __device__ __forceinline__ void add(const ExactSum& x) {
        add(x.sum);
        residual += x.residual;
    }
};

// kCoarse: for tensors of 16 bits; complex exponentials take the special function unit's sine and cosine, with errors of 5e-7.
template <Transition kTransition, bool kComplex, bool kCoarse = false>
struct Pole;

template <Transition kTransition, bool kCoarse>
struct Pole<kTransition, false, kCoarse> {
    static constexpr bool kRelative = kTransition == Transition::bilinear || kTransition == Transition::s7;
    static constexpr bool kFollowsSteps = !kRelative;  // the decay over many steps depends on their sum alone

    float rate;     // log2 Ā per unit of δ; bilinear: A / 2
    float inverse;  // 1 / A, for zoh

    __device__ __forceinline__ static Pole of(float A) {
        if constexpr (kTransition == Transition::bilinear) return {0.5f * A, 0.f};
        if constexpr (kTransition == Transition::s7) return {0.f, 0.f};
        if constexpr (kTransition == Transition::rglru) return {log2f(A), 0.f};
        return {A * kLog2e, kTransition == Transition::zoh ? 1.f / A : 0.f};
    }

    // rglru has no B.
    __device__ __forceinline__ Step<float> step(const ChannelStep& channel, float B) const {
        if constexpr (kTransition == Transition::exponential) {
            return {exp2_fast(channel.step * rate), channel.input * B};
        } else if constexpr (kTransition == Transition::zoh) {
            const float z = channel.size * (rate * kLn2);
            const float factor =
                fabsf(z) < 0.5f ? channel.size * fmaf(z, expm1_tail(z), 1.f) : (exp2_fast(channel.size * rate) - 1.f) * inverse;
            return {exp2_fast(channel.step * rate), channel.input * factor * B};
        } else if constexpr (kTransition == Transition::bilinear) {
            const float half = channel.step * rate;
            return {2.f * half * reciprocal_fast(1.f - half),
                    channel.input * channel.size * reciprocal_fast(fmaf(-channel.size, rate, 1.f)) * B};
        } else if constexpr (kTransition == Transition::s7) {
            return {channel.step, channel.input * B};
        } else {
            const float power = channel.step == 0.f ? 0.f : channel.step * rate;  // 0⁰ is 1
            return {exp2_fast(power), channel.input * sqrtf(-expm1_fast(power * (2.f * kLn2)))};
        }
    }

    // A decay near one is rounded by up to 3e-8, and equal steps round in the same direction. Returns whether these errors may
    // add up to more than `most` before a state has decayed, if `steps` steps sum to `total`.
    __device__ __forceinline__ bool may_drift(float total, int steps, float most) const {
        const float power = fabsf(total * rate);
        return power < static_cast<float>(steps) * (3e-8f * kLog2e / most) && power > 0.f;
    }
    // relative = Ā over steps that sum to `total`, minus 1, without that error. Returns whether it is valid: whether the decay
    // is slow.
    __device__ __forceinline__ bool long_memory(float total, float& relative) const {
        const float z = total * rate * kLn2;
        relative = expm1_small(z);
        return fabsf(z) < 0.5f;
    }
};

template <Transition kTransition, bool kCoarse>
struct Pole<kTransition, true, kCoarse> {
    static constexpr bool kRelative = kTransition == Transition::bilinear, kFollowsSteps = !kRelative;
    using Complex = ComplexNumber<float>;

    Complex A, inverse;           // inverse: 1 / A, for zoh
    float rate, turns, residual;  // per unit of δ: log2 |Ā|, Im A / 2π, and the rounding error of turns

    __device__ __forceinline__ static Pole of(Complex A) {
        constexpr float kInverse = 0.159154937f, kResidual = 6.42063833e-9f;  // 1 / 2π
        const float turns = A.im * kInverse;
        return {A, kTransition == Transition::zoh ? scan::inverse(A) : Complex{}, A.re * kLog2e, turns,
                fmaf(A.im, kResidual, fmaf(A.im, kInverse, -turns))};
    }
    // √2 times the sine and cosine of half the angle of e^(δA); turns are reduced without error.
    __device__ __forceinline__ void sincos(float delta, float& sine, float& cosine) const {
        const float part = fmaf(delta, turns, -rintf(delta * turns));
        sincos_half_turns(fmaf(delta, residual, part), sine, cosine);
    }
    // e^(δA)
    __device__ __forceinline__ Complex power(float delta) const {
        if constexpr (kCoarse) {
            // Rounded by an addition: the unit that rounds is the one of sines. Beyond 4e6 turns δA is rounded to turns anyway.
            constexpr float kRounds = 12582912.f, kTurn = 6.28318531f;
            const float whole = fmaf(delta, turns, kRounds) - kRounds;
            const float angle = fmaf(delta, residual, fmaf(delta, turns, -whole)) * kTurn, size = exp2_fast(delta * rate);
            return {size * cosine_fast(angle), size * sine_fast(angle)};
        }
        float sine, cosine;
        sincos(delta, sine, cosine);
        const float size = exp2_fast(delta * rate), scaled_sine = size * sine;
        return {fmaf(-scaled_sine, sine, size), scaled_sine * cosine};
    }
    // e^(δA) − 1
    __device__ __forceinline__ Complex power_less_one(float delta) const {
        float sine, cosine;
        sincos(delta, sine, cosine);
        const float real = delta * A.re, size = exp2_fast(delta * rate), scaled_sine = size * sine;
        return {fmaf(-scaled_sine, sine, fabsf(real) < 0.5f ? expm1_small(real) : size - 1.f), scaled_sine * cosine};
    }
    // Ā over steps that sum to `steps`, for any number of turns.
    __device__ __forceinline__ Complex decay_over(const ExactSum& steps) const {
        const float phase = steps.sum * turns, power = steps.sum * A.re;
        const float error = fmaf(steps.sum, residual, fmaf(steps.sum, turns, -phase)) + steps.residual * turns;
        const float size = fabsf(power) < 0.5f ? 1.f + expm1_small(power) : exp2_fast(steps.sum * rate);
        return unit_at(2.f * (phase - rintf(phase) + error)) * size;
    }
    // As for a real pole, with an error of 1e-7 a step.
    __device__ __forceinline__ bool may_drift(float total, int steps, float most) const {
        return fabsf(total * rate) < static_cast<float>(steps) * (1e-7f * kLog2e / most);
    }
    __device__ __forceinline__ Step<Complex> step(const ChannelStep& channel, Complex B) const {
        if constexpr (kTransition == Transition::exponential) {
            return {power(channel.step), B * channel.input};
        } else if constexpr (kTransition == Transition::zoh) {
            const Complex z = A * channel.size;
            const Complex near = Complex{1.f, 0.f}.plus(z, {0.5f, 0.f}) * channel.size,
                          far = power_less_one(channel.size) * inverse;
            return {power(channel.step), (z.square() < 1e-7f ? near : far) * channel.input * B};
        } else {
            const Complex twice = A * channel.step, half = twice * 0.5f, other = A * (0.5f * channel.size);
            const Complex one{1.f, 0.f};
            return {twice * scan::inverse(one - half), B * (scan::inverse(one - other) * (channel.size * channel.input))};
        }
    }
};

}  // namespace gdn_cuda::scan
