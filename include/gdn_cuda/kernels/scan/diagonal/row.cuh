// One row of a diagonal scan: its step sizes and inputs, Ā and the factor f of its tokens, and their derivatives.
//
// All of it is fp64 but the exponent of a decay and its distance from a power of two, so that the error of a decay near one is
// 2^-24 of its distance from one. Phases δ Im A are exact products of two fp32 values.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/diagonal/inputs.cuh>
#include <gdn_cuda/kernels/scan/row_scan.cuh>

namespace gdn_cuda::scan {

using Stored = ComplexNumber<float>;
using Wide = ComplexNumber<double>;

__device__ __forceinline__ Wide wide(const Stored& x) {
    return {x.re, x.im};
}
__device__ __forceinline__ Stored narrow(const Wide& x) {
    return {static_cast<float>(x.re), static_cast<float>(x.im)};
}
__device__ __forceinline__ double real_of_product(const Wide& x, const Wide& y) {  // Re(x conj(y))
    return fma(x.re, y.re, x.im * y.im);
}
__device__ __forceinline__ Wide inverse(const Wide& x) {
    return x.conjugate() * (1 / x.square());
}

// ---- Loads and stores of a thread's tokens, which start at a multiple of kDiagonalTokens (scan/s7/tokens.cuh says why not
// shared with it)

template <class T>
using Tokens = Vector<T, kDiagonalTokens, true>;

template <class T>
__device__ __forceinline__ void load_tokens(Tokens<T>& tokens, const T* row, int first, int length, bool aligned) {
    if (aligned && first + kDiagonalTokens <= length) {
        tokens.load(row + first);
    } else {
#pragma unroll
        for (int i = 0; i < kDiagonalTokens; ++i) tokens.items[i] = first + i < length ? row[first + i] : T{};
    }
}
template <class T>
__device__ __forceinline__ void store_tokens(const Tokens<T>& tokens, T* row, int first, int length, bool aligned) {
    if (aligned && first + kDiagonalTokens <= length) {
        tokens.store(row + first);
    } else {
#pragma unroll
        for (int i = 0; i < kDiagonalTokens; ++i)
            if (first + i < length) row[first + i] = tokens.items[i];
    }
}

// ---- One token

// e^(i radians), to 1e-11 for phases up to 1e15; beyond that fp64 does not resolve a turn, and it is a power of i.
__device__ __forceinline__ Wide unit_of(double radians) {
    constexpr double kInverse = 0x1.45f306dc9c883p-1, kQuarter = 0x1.921fb54442d18p+0,
                     kResidual = 0x1.1a62633145c07p-54;  // pi / 2
    constexpr double kRound = 0x1.8p52;                  // the sum's last bits are the nearest integer
    const double sum = fma(radians, kInverse, kRound), quarters = sum - kRound;
    double x = fma(-quarters, kResidual, fma(-quarters, kQuarter, radians));
    if (fabs(x) > 0.8) x = 0;  // keeps NaN
    const double square = x * x;
    double odd = fma(square, -1.0 / 39916800, 1.0 / 362880), even = fma(square, 1.0 / 479001600, -1.0 / 3628800);
    odd = fma(odd, square, -1.0 / 5040);
    even = fma(even, square, 1.0 / 40320);
    odd = fma(odd, square, 1.0 / 120);
    even = fma(even, square, -1.0 / 720);
    odd = fma(odd, square, -1.0 / 6);
    even = fma(even, square, 1.0 / 24);
    even = fma(even, square, -0.5);
    const double sine = fma(x * square, odd, x), cosine = fma(even, square, 1.0);
    const int quarter = __double2loint(sum);
    const double re = quarter & 1 ? sine : cosine, im = quarter & 1 ? cosine : sine;
    return {(quarter + 1) & 2 ? -re : re, quarter & 2 ? -im : im};
}

// e^z as 2^n (1 + p), with p in fp32: between e^-700 and e^700.
__device__ __forceinline__ double size_of(float z) {
    constexpr float kRound = 0x1.8p23f, kInverse = 1.44269504f, kLn2 = 0.693145752f,
                    kResidual = 1.42860677e-6f;  // kLn2 has 15 bits
    z = at_most(at_least(z, -700.f), 700.f);
    const float sum = fmaf(z, kInverse, kRound), n = sum - kRound;
    const float residual = fmaf(-n, kResidual, fmaf(-n, kLn2, z));  // up to ln(2) / 2 in size
    const double power = __hiloint2double((1023 + __float_as_int(sum) - __float_as_int(kRound)) << 20, 0);
    return fma(power, static_cast<double>(expm1_small(residual)), power);
}

// e^(delta A)
__device__ __forceinline__ Wide exponential(double delta, const Wide& A) {
    return unit_of(delta * A.im) * size_of(static_cast<float>(delta) * static_cast<float>(A.re));
}

// Ā
template <Discretization kKind>
__device__ __forceinline__ Wide decay_of(double delta_a, const Wide& A) {
    if constexpr (kKind == Discretization::bilinear) {
        const Wide half = A * (0.5 * delta_a);
        return Wide{1 + half.re, half.im} * inverse({1 - half.re, -half.im});
    } else {
        return exponential(delta_a, A);
    }
}

template <Discretization kKind>
struct DiagonalStep {
    Wide a, factor;                               // Ā and f
    Wide power, inverse_of_a, inverse_of_factor;  // for gradients: e^(δA); 1/(1 − ½δ_A A), 1/(1 − ½δA)

    // |z|² below which (e^z − 1) / z is a series: four terms are exact to 1e-14; above it the difference keeps 13 digits.
    static constexpr double kSmallSquare = 1e-6;

    // Computes the factor from Ā = `a`; `separate`: δ_A is not δ.
    __device__ __forceinline__ DiagonalStep(const Wide& a, double delta, bool separate, const Wide& A, const Wide& inverse_A)
        : a(a) {
        if constexpr (kKind == Discretization::bilinear) {
            inverse_of_factor = inverse_of_a = {0.5 + 0.5 * a.re, 0.5 * a.im};
            if (separate) inverse_of_factor = inverse({1 - 0.5 * delta * A.re, -0.5 * delta * A.im});
            factor = inverse_of_factor * delta;
        } else if constexpr (kKind == Discretization::zoh) {
            power = separate ? exponential(delta, A) : a;
            const Wide z = A * delta;
            if (z.square() < kSmallSquare) {
                Wide series{1 + 0.25 * z.re, 0.25 * z.im};
                series = one_plus(z * (1.0 / 3) * series);
                factor = one_plus(z * 0.5 * series) * delta;
            } else {
                factor = Wide{power.re - 1, power.im} * inverse_A;
            }
        } else {
            factor = {1, 0};
        }
    }

    // From the gradients of a and of the factor, computes those of δ and δ_A, and adds to that of A.
    __device__ __forceinline__ void gradients(const Wide& da, const Wide& dfactor, double delta, double delta_a, const Wide& A,
                                              const Wide& inverse_A, double& ddelta, double& ddelta_a, Wide& dA) const {
        if constexpr (kKind == Discretization::bilinear) {
            const Wide slope = inverse_of_a * inverse_of_a, by_delta = inverse_of_factor * inverse_of_factor;
            ddelta_a = real_of_product(da, A * slope);
            dA = dA.plus(da, slope.conjugate() * delta_a);
            ddelta = real_of_product(dfactor, by_delta);
            dA = dA.plus(dfactor, by_delta.conjugate() * (0.5 * delta * delta));
        } else {
            const Wide by_exponent = da * a.conjugate();
            ddelta_a = real_of_product(by_exponent, A);
            dA = dA + by_exponent * delta_a;
            ddelta = 0;
            if constexpr (kKind == Discretization::zoh) {
                ddelta = real_of_product(dfactor, power);
                const Wide z = A * delta;
                Wide slope;
                if (z.square() < kSmallSquare) {
                    Wide series{1.0 / 8 + z.re * (1.0 / 30), z.im * (1.0 / 30)};
                    series = z * series;
                    series = z * Wide{1.0 / 3 + series.re, series.im};
                    slope = Wide{0.5 + series.re, series.im} * (delta * delta);
                } else {
                    slope = (power * delta - factor) * inverse_A;
                }
                dA = dA.plus(dfactor, slope.conjugate());
            }
        }
    }

  private:
    __device__ __forceinline__ static Wide one_plus(const Wide& x) { return {1 + x.re, x.im}; }
};

template <Discretization kKind>
struct Kind {
    static constexpr Discretization kValue = kKind;
};
// Calls run(Kind<…>) with the discretization, which is the same in every thread.
template <class Run>
__device__ __forceinline__ void with_kind(Discretization discretization, const Run& run) {
    if (discretization == Discretization::bilinear) {
        run(Kind<Discretization::bilinear>{});
    } else if (discretization == Discretization::zoh) {
        run(Kind<Discretization::zoh>{});
    } else {
        run(Kind<Discretization::dirac>{});
    }
}

// ---- The row of a block

// kVarying: δ or δ_A varies over time.
template <bool kVarying>
struct DiagonalRow {
    const DiagonalInputs& inputs;
    const int row, part, state, first, end;  // this block's tokens are those from first to end
    const i64 start;                         // the row's offset in a (batch, P, L) tensor
    const bool separate;                     // δ_A is not δ
    const Wide A, inverse_A;
    float delta = 0, delta_a = 0;  // values if they do not vary

    __device__ __forceinline__ explicit DiagonalRow(const DiagonalInputs& inputs)
        : inputs(inputs),
          row(static_cast<int>(blockIdx.x) / inputs.parts),
          part(static_cast<int>(blockIdx.x) - row * inputs.parts),
          state(row % inputs.states),
          first(part * inputs.part_tokens),
          end(min(first + inputs.part_tokens, inputs.length)),
          start(static_cast<i64>(row) * inputs.length),
          separate(inputs.delta_a.data != nullptr),
          A(wide(static_cast<const Stored*>(inputs.A)[state])),
          inverse_A(inverse(A)) {
        if (!inputs.delta.varies) delta = inputs.delta.data[state];
        delta_a = delta;
        if (separate && !inputs.delta_a.varies) delta_a = inputs.delta_a.data[state];
    }

    struct Sizes {
        Tokens<float> delta, delta_a;
    };
    __device__ __forceinline__ void load_sizes(Sizes& sizes, int token) const {
        if constexpr (kVarying) {
            load_size(sizes.delta, inputs.delta, delta, token);
            if (separate) load_size(sizes.delta_a, inputs.delta_a, delta_a, token);
        }
    }
    __device__ __forceinline__ void load(Tokens<Stored>& tokens, const void* tensor, int token) const {
        load_tokens(tokens, static_cast<const Stored*>(tensor) + start, token, end, inputs.aligned);
    }
    // Makes tokens past the end leave the state as it is; in reverse, a thread's tokens are counted from the last.
    template <bool kReverse = false>
    __device__ __forceinline__ void mask(Wide (&a)[kDiagonalTokens], Wide (&b)[kDiagonalTokens], int token) const {
        if (token + kDiagonalTokens <= end) return;
#pragma unroll
        for (int i = 0; i < kDiagonalTokens; ++i)
            if (token + (kReverse ? kDiagonalTokens - 1 - i : i) >= end) a[i] = {1, 0}, b[i] = {0, 0};
    }
    __device__ __forceinline__ double delta_of(const Sizes& sizes, int i) const {
        if constexpr (kVarying) return sizes.delta.items[i];
        return delta;
    }
    __device__ __forceinline__ double delta_a_of(const Sizes& sizes, int i) const {
        if constexpr (kVarying) return separate ? sizes.delta_a.items[i] : sizes.delta.items[i];
        return delta_a;
    }
    template <Discretization kKind>
    __device__ __forceinline__ Wide decay(const Sizes& sizes, int i) const {
        return decay_of<kKind>(delta_a_of(sizes, i), A);
    }
    template <Discretization kKind>
    __device__ __forceinline__ DiagonalStep<kKind> step(const Wide& a, const Sizes& sizes, int i) const {
        return {a, delta_of(sizes, i), separate, A, inverse_A};
    }
    // The step of all tokens, if step sizes do not vary.
    template <Discretization kKind>
    __device__ __forceinline__ DiagonalStep<kKind> fixed_step() const {
        return step<kKind>(decay<kKind>({}, 0), {}, 0);
    }

  private:
    __device__ __forceinline__ void load_size(Tokens<float>& tokens, const StepSizes& sizes, float fixed, int token) const {
        if (sizes.varies) {
            load_tokens(tokens, sizes.data + start, token, end, inputs.aligned);
        } else {
#pragma unroll
            for (int i = 0; i < kDiagonalTokens; ++i) tokens.items[i] = fixed;
        }
    }
};

}  // namespace gdn_cuda::scan
