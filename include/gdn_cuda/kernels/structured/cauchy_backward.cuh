// structured/cauchy_backward: what sums over poles pass back. With D = 1 / (z_l - w_n), bars for conjugates,
//
//     of v_n: sum over l of g_l D~      of w_n: v_n~ times sum over l of g_l (D D)~      of z_l: -g_l times sum over n of (v_n
//     D D)~
//
// and with conj, for the other pole of each pair, the conjugates of the same with w_n~ and v_n~ in place of w_n and v_n.
//
// A block has a few poles (or points), in registers of every thread; threads walk over points (or poles), and their sums meet
// in shared memory, in a fixed order.
//
// Bound: arithmetic, one reciprocal and some 15 products or sums a pole (or its conjugate) and a point.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy_backward_plan.cuh>
#include <gdn_cuda/kernels/structured/cauchy_common.cuh>

namespace gdn_cuda::structured {

template <CauchyBackwardConfig kConfig>
struct CauchyBackward {
    using Io = Numbers<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    static constexpr bool kComplex = Io::kComplex;

    const CauchyBackwardArgs& args;

    __device__ __forceinline__ static Number conjugate(const Number& x) { return {x.re, -x.im}; }
    __device__ __forceinline__ static Number product(const Number& x, const Number& y) {
        if constexpr (!kComplex) return {x.re * y.re, Real{}};
        return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
    }
    // sum += x conj(y)
    __device__ __forceinline__ static void add_product(Number& sum, const Number& x, const Number& y) {
        sum.re += x.re * y.re;
        if constexpr (kComplex) {
            sum.re += x.im * y.im;
            sum.im += x.im * y.re - x.re * y.im;
        }
    }
    __device__ __forceinline__ static Number inverse(const Number& z, const Number& w) {
        const Number d{z.re - w.re, z.im - w.im};
        if constexpr (!kComplex) {
            const Real r = reciprocal(d.re);
            return {d.re == Real{} ? r - r : r, Real{}};  // NaN where they meet, as complex ones have it
        }
        const Real square = d.re * d.re + d.im * d.im;
        if (!in_range(square)) [[unlikely]] {
            const Complex<double> exact =
                quotient({1.0, 0.0}, {static_cast<double>(z.re) - w.re, static_cast<double>(z.im) - w.im});
            return {static_cast<Real>(exact.re), static_cast<Real>(exact.im)};
        }
        const Real scale = reciprocal(square);
        return {d.re * scale, -d.im * scale};
    }

    // What one pole and one point add to the sums of a line: for poles, of g D~ and g (D D)~; for points, of (v D D)~.
    __device__ __forceinline__ static void add(Number& first, Number& second, const Number& z, const Number& w, const Number& v,
                                               const Number& g) {
        const Number d = inverse(z, w);
        if constexpr (kConfig.of_points) {
            add_product(first, {Real{1}, Real{}}, product(product(v, d), d));
        } else {
            add_product(first, g, d);
            add_product(second, g, product(d, d));
        }
    }

    __device__ __forceinline__ void run(CauchyBackwardSharedPlan<kConfig, Real>& shared) {
        const int count = kConfig.of_points ? args.point_count : args.pole_count,
                  others = kConfig.of_points ? args.pole_count : args.point_count;
        const int groups = (count + kConfig.lines - 1) / kConfig.lines;
        const i64 row = blockIdx.x / groups;
        const int first_line = static_cast<int>(blockIdx.x % groups) * kConfig.lines;
        const i64 residues = row_of(args, args.residues, row), points = row_of(args, args.points, row),
                  poles = row_of(args, args.poles, row), grad = row_of(args, args.grad, row);
        const auto point = [&](int l) { return Io::load(args.points.data, points + l * args.points.step); };
        const auto pole = [&](int n) { return Io::load(args.poles.data, poles + n * args.poles.step); };

        Number lines[kConfig.lines], first[kConfig.lines]{}, second[kConfig.lines]{};
#pragma unroll
        for (int i = 0; i < kConfig.lines; ++i) {
            const int line = min(first_line + i, count - 1);
            lines[i] = kConfig.of_points ? point(line) : pole(line);
        }
#pragma unroll 1
        for (int other = threadIdx.x; other < others; other += kConfig.threads) {
            Number x, with;  // a pole and its residue, or a point and what comes back there
            if constexpr (kConfig.of_points) {
                x = pole(other);
                with = Io::load(args.residues.data, residues + other * args.residues.step);
            } else {
                x = point(other);
                with = Io::load(args.grad.data, grad + other * args.grad.step);
            }
#pragma unroll
            for (int i = 0; i < kConfig.lines; ++i) {
                if constexpr (kConfig.of_points) {
                    add(first[i], second[i], lines[i], x, with, {});
                    if constexpr (kConfig.conj) add(first[i], second[i], lines[i], conjugate(x), conjugate(with), {});
                } else {
                    add(first[i], second[i], x, lines[i], {}, with);
                    // The other pole's sums come back conjugated: so do its distances and g.
                    if constexpr (kConfig.conj) add(first[i], second[i], conjugate(x), lines[i], {}, conjugate(with));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kConfig.lines; ++i) {
            gather(shared, first[i], second[i]);
            if (threadIdx.x == 0 && first_line + i < count)
                finish(row, first_line + i, count, first[i], second[i], residues, grad);
        }
    }
    // Every thread's sums, in thread 0.
    __device__ __forceinline__ static void gather(CauchyBackwardSharedPlan<kConfig, Real>& shared, Number& first,
                                                  Number& second) {
        auto& mine = shared.sums[threadIdx.x];
        __syncthreads();
        mine[0] = first.re;
        mine[1] = first.im;
        mine[2] = second.re;
        mine[3] = second.im;
#pragma unroll
        for (int half = kConfig.threads / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half)
#pragma unroll
                for (int part = 0; part < 4; ++part) mine[part] += shared.sums[threadIdx.x + half][part];
        }
        first = {mine[0], mine[1]};
        second = {mine[2], mine[3]};
    }
    __device__ __forceinline__ void finish(i64 row, int line, int count, const Number& first, const Number& second,
                                           i64 residues, i64 grad) const {
        const i64 at = row * count + line;
        if constexpr (kConfig.of_points) {
            const Number x = product(Io::load(args.grad.data, grad + line * args.grad.step), first);
            Io::store(args.of_points, at, {-x.re, -x.im});
        } else {
            if (args.of_residues != nullptr) Io::store(args.of_residues, at, first);
            if (args.of_poles != nullptr)
                Io::store(args.of_poles, at,
                          product(conjugate(Io::load(args.residues.data, residues + line * args.residues.step)), second));
        }
    }
};

template <CauchyBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.least_blocks())
    cauchy_backward(const __grid_constant__ CauchyBackwardArgs args) {
    __shared__ CauchyBackwardSharedPlan<kConfig, typename CauchyBackward<kConfig>::Real> shared;
    CauchyBackward<kConfig>{args}.run(shared);
}

}  // namespace gdn_cuda::structured
