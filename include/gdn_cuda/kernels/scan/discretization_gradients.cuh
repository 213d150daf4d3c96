// The gradients of one step of one state, x_t = Ā_t x_{t−1} + (B̄u)_t, for Pole::step of discretization.cuh. A gradient with
// respect to a complex number is ∂/∂re + i ∂/∂im, so factors appear conjugated. Nothing forms Ā x_{t−1} as x_t − B̄u, which
// cancels where Ā is small.
#pragma once

#include <gdn_cuda/kernels/scan/discretization.cuh>

namespace gdn_cuda::scan {

// conj(x), x conj(y), z + x conj(y), and z + Re(x conj(y))
__device__ __forceinline__ float conjugate(float x) {
    return x;
}
__device__ __forceinline__ ComplexNumber<float> conjugate(ComplexNumber<float> x) {
    return x.conjugate();
}
__device__ __forceinline__ float times_conjugate(float x, float y) {
    return x * y;
}
__device__ __forceinline__ ComplexNumber<float> times_conjugate(ComplexNumber<float> x, ComplexNumber<float> y) {
    return {fmaf(x.re, y.re, x.im * y.im), fmaf(x.im, y.re, -x.re * y.im)};
}
__device__ __forceinline__ float plus_times_conjugate(float z, float x, float y) {
    return fmaf(x, y, z);
}
__device__ __forceinline__ ComplexNumber<float> plus_times_conjugate(ComplexNumber<float> z, ComplexNumber<float> x,
                                                                     ComplexNumber<float> y) {
    return {fmaf(x.re, y.re, fmaf(x.im, y.im, z.re)), fmaf(x.im, y.re, fmaf(-x.re, y.im, z.im))};
}
__device__ __forceinline__ float add_real_of_conjugate(float z, float x, float y) {
    return fmaf(x, y, z);
}
__device__ __forceinline__ float add_real_of_conjugate(float z, ComplexNumber<float> x, ComplexNumber<float> y) {
    return fmaf(x.re, y.re, fmaf(x.im, y.im, z));
}
// z + x y for a real y
__device__ __forceinline__ float plus_scaled(float z, float x, float y) {
    return fmaf(x, y, z);
}
__device__ __forceinline__ ComplexNumber<float> plus_scaled(ComplexNumber<float> z, ComplexNumber<float> x, float y) {
    return {fmaf(x.re, y, z.re), fmaf(x.im, y, z.im)};
}
__device__ __forceinline__ float one_of(float) {
    return 1.f;
}
__device__ __forceinline__ ComplexNumber<float> one_of(ComplexNumber<float>) {
    return {1.f, 0.f};
}
__device__ __forceinline__ float squared_size(float x) {
    return x * x;
}
__device__ __forceinline__ float squared_size(ComplexNumber<float> x) {
    return x.square();
}
__device__ __forceinline__ float inverse(float x) {
    return __fdividef(1.f, x);
}

// d/dz of (e^z − 1) / z, which is (z e^z − (e^z − 1)) / z².
template <class T>
__device__ __forceinline__ T slope_of_expm1_over(T z, T expm1) {
    constexpr float kSmall = 0.5f;  // |z|² below which the series is used
    if (squared_size(z) < kSmall) {
        constexpr float kSeries[] = {1.f / 45360, 1.f / 5760, 1.f / 840, 1.f / 144, 1.f / 30, 1.f / 8, 1.f / 3, 1.f / 2};
        T p = one_of(z) * kSeries[0];
#pragma unroll
        for (int i = 1; i < 8; ++i) p = plus_product(one_of(z) * kSeries[i], p, z);
        return p;
    }
    const T over = inverse(z);
    return (plus_product(z, z, expm1) - expm1) * over * over;
}

// Gradients of ChannelStep, summed over the states of a channel.
struct ChannelSlopes {
    float input = 0.f, step = 0.f, size = 0.f;
};

template <Transition kTransition, bool kComplex, bool kCoarse = false>
struct PoleGradient {
    using Number = scan::Number<kComplex>;
    using Poles = Pole<kTransition, kComplex, kCoarse>;

    // A, from a Pole.
    __device__ __forceinline__ static Number pole_of(const Poles& pole) {
        if constexpr (kComplex)
            return pole.A;
        else if constexpr (kTransition == Transition::bilinear)
            return 2.f * pole.rate;
        else
            return pole.rate * kLn2;
    }
    // The gradient of x_{t−1} through Ā.
    __device__ __forceinline__ static Number carried(Number dx, Number decay) {
        if constexpr (Poles::kRelative)
            return plus_times_conjugate(dx, dx, decay);
        else
            return times_conjugate(dx, decay);
    }

    // slopes.step is summed in units of kStepUnit.
    static constexpr bool kInLog2 = !kComplex && (kTransition == Transition::exponential || kTransition == Transition::zoh ||
                                                  kTransition == Transition::rglru);
    static constexpr float kStepUnit = kInLog2 ? kLn2 : 1.f;

    // Adds the step's contributions to the gradients of the channel's step, the pole (for rglru, its logarithm) and B; returns
    // carried().
    __device__ __forceinline__ static Number add(const Poles& pole, const ChannelStep& channel, Number B, Number decay,
                                                 Number before, Number dx, ChannelSlopes& slopes, Number& dpole, Number& dB) {
        const Number carry = carried(dx, decay);
        if constexpr (kTransition == Transition::exponential) {
            const Number through = times_conjugate(carry, before);
            slopes.input = add_real_of_conjugate(slopes.input, dx, B);
            if constexpr (kComplex)
                slopes.step = add_real_of_conjugate(slopes.step, through, pole.A);
            else
                slopes.step = fmaf(through, pole.rate, slopes.step);
            dpole = plus_scaled(dpole, through, channel.step);
            dB = plus_scaled(dB, dx, channel.input);
        } else if constexpr (kTransition == Transition::s7) {
            slopes.input = fmaf(dx, B, slopes.input);
            slopes.step = fmaf(dx, before, slopes.step);
            dB = fmaf(dx, channel.input, dB);
        } else if constexpr (kTransition == Transition::rglru) {
            // With p = log Ā, the slope of √(1 − e^(2p)) is −e^(2p) / root, which is infinite at Ā = 1 and counts as 0.
            const float root = pole.step({channel.step, 1.f, 0.f}, 1.f).drive;
            const float slope = root == 0.f ? 0.f : decay * decay * (1.f / root);
            const float through = fmaf(-dx * channel.input, slope, carry * before);
            slopes.input = fmaf(dx, root, slopes.input);
            if (through != 0.f) slopes.step = fmaf(through, pole.rate, slopes.step);  // the logarithm of 0 is infinite
            dpole = fmaf(through, channel.step, dpole);
        } else {
            const Number A = pole_of(pole);
            const Number gain = pole.step({channel.step, 1.f, channel.size}, one_of(A)).drive;  // B̄ = gain B
            const Number driven = times_conjugate(dx, B) * channel.input;                       // the gradient of the gain
            slopes.input = add_real_of_conjugate(slopes.input, times_conjugate(dx, B), gain);
            dB = plus_scaled(dB, times_conjugate(dx, gain), channel.input);
            if constexpr (kTransition == Transition::zoh) {
                const Number through = times_conjugate(carry, before), z = A * channel.size;
                Number relative, whole;
                if constexpr (kComplex) {
                    relative = pole.power_less_one(channel.size), whole = pole.power(channel.size);
                } else {
                    relative = expm1_fast(z), whole = exp2_fast(channel.size * pole.rate);
                }
                slopes.size = add_real_of_conjugate(slopes.size, driven, whole);
                if constexpr (kComplex)
                    slopes.step = add_real_of_conjugate(slopes.step, through, A);
                else
                    slopes.step = fmaf(through, pole.rate, slopes.step);
                dpole = plus_scaled(dpole, through, channel.step);
                dpole = plus_times_conjugate(dpole, driven, slope_of_expm1_over(z, relative) * (channel.size * channel.size));
            } else {
                const Number inverse_step = inverse(one_of(A) - A * (0.5f * channel.step)),
                             inverse_size = inverse(one_of(A) - A * (0.5f * channel.size));
                const Number through = times_conjugate(times_conjugate(dx, before), inverse_step * inverse_step);
                const Number slope = inverse_size * inverse_size;
                slopes.size = add_real_of_conjugate(slopes.size, driven, slope);
                slopes.step = add_real_of_conjugate(slopes.step, through, A);
                dpole = plus_scaled(dpole, through, channel.step);
                dpole = plus_times_conjugate(dpole, driven, slope * (0.5f * channel.size * channel.size));
            }
        }
        return carry;
    }
};

}  // namespace gdn_cuda::scan
