// Powers e^(x l) of complex numbers, l whole, with phases as exact as x itself: after a million radians, too.
//
// A phase is kept in turns, its fraction as 64 bits: multiplying that by l drops whole turns by itself and rounds nothing. Once
// a number it is divided by 2 pi in twice the precision of fp64, so that its last bit counts for less than l of 2^-64 turns.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

struct Turns {
    unsigned long long fraction;  // of a turn, times 2^64

    // Of phases up to 1e15 radians; beyond, an fp64 number says nothing of where in a turn it is.
    __device__ __forceinline__ static Turns of(double radians) {
        constexpr double kInverse = 0x1.45f306dc9c883p-3, kRest = -0x1.6b01ec5417056p-57;  // 1 / (2 pi)
        const double product = radians * kInverse, rest = fma(radians, kRest, fma(radians, kInverse, -product));
        return {scaled(product - trunc(product)) + scaled(fmax(fmin(rest, 0.5), -0.5))};
    }
    // From -1/2 to 1/2.
    template <class Real>
    __device__ __forceinline__ Real after(unsigned long long steps) const {
        const auto turns = static_cast<long long>(fraction * steps);
        if constexpr (sizeof(Real) == sizeof(float))
            return static_cast<float>(static_cast<int>(turns >> 32)) * 0x1p-32f;
        else
            return static_cast<double>(turns) * 0x1p-64;
    }

  private:
    // Of its size, which may be small: added to one it would lose digits.
    __device__ __forceinline__ static unsigned long long scaled(double turns) {
        const auto size = static_cast<unsigned long long>(fabs(turns) * 0x1p64);
        return turns < 0 ? -size : size;
    }
};

// e^(x l)
template <class Real>
struct Powers {
    Turns turns;
    Real log_size;

    // A phase that is no number, or infinite, makes powers that are none: turns are whole numbers and cannot say it.
    __device__ __forceinline__ Powers(Real log_size, double radians)
        : turns(Turns::of(radians)), log_size(log_size + static_cast<Real>(radians * 0)) {}

    __device__ __forceinline__ Powers(Turns turns, Real log_size) : turns(turns), log_size(log_size) {}

    __device__ __forceinline__ void after(unsigned long long steps, Real& re, Real& im) const {
        Real sine, cosine;
        sine_cosine_of_turns(turns.after<Real>(steps), sine, cosine);
        const Real size = steps == 0 ? Real{1} : size_after(steps);
        re = size * cosine;
        im = size * sine;
    }

  private:
    __device__ __forceinline__ static void sine_cosine_of_turns(float turns, float& sine, float& cosine) {
        sincospif(2.f * turns, &sine, &cosine);
    }
    __device__ __forceinline__ static void sine_cosine_of_turns(double turns, double& sine, double& cosine) {
        sincospi(2.0 * turns, &sine, &cosine);
    }
    // The exponent's product with what rounding left of it. Steps are less than 2^48; in fp32 their two halves are exact.
    __device__ __forceinline__ Real size_after(unsigned long long steps) const {
        if constexpr (sizeof(Real) == sizeof(float)) {
            const float most = static_cast<float>(static_cast<unsigned>(steps >> 24)) * 0x1p24f,
                        last = static_cast<float>(static_cast<unsigned>(steps) & 0xffffffu);
            const float finite = log_size < -1e30f  ? -1e30f
                                 : log_size > 1e30f ? 1e30f
                                                    : log_size;  // 0 times infinity is no number
            const float of_most = finite * most, of_last = finite * last, exponent = of_most + of_last;
            const float rest = (fmaf(finite, most, -of_most) + fmaf(finite, last, -of_last)) + (of_last - (exponent - of_most));
            const float size = expf(exponent);
            return size == 0.f || isinf(size) ? size : fmaf(size, rest, size);
        } else {
            const auto many = static_cast<double>(steps);
            const double exponent = log_size * many, rest = fma(log_size, many, -exponent), size = exp(exponent);
            return size == 0.0 || isinf(size) ? size : fma(size, rest, size);
        }
    }
};

}  // namespace gdn_cuda
