// structured/cauchy_backward: gradients of structured/cauchy. With D = 1 / (z_l - w_n), ~ for conjugates and g the gradient of
// out:
//
//     dv_n = sum over l of g_l D~
//     dw_n = v_n~ sum over l of g_l (D D)~
//     dz_l = -g_l sum over n of (v_n D D)~
//
// and with conj, for the other pole of each pair, the conjugates of these with w_n~ and v_n~ in place of w_n and v_n.
//
// A block computes the gradients of a few poles (or points), its outputs, which every thread holds in registers. Threads loop
// over points (or poles), and their sums are reduced in a fixed order.
//
// Both poles of a conjugate pair are summed as one fraction, with fewer operations where most points are on the imaginary axis,
// as in S4 (cauchy/backward_pairs.cuh). Points of large magnitude use the general
// loop; so do all points if a sum of squares leaves the range or a pole coincides with a point.
//
// Bound: arithmetic, one reciprocal and some 15 multiplies or adds per pole (or its conjugate) and point; 23 per pair of poles
// and point, 15 on the axis. On an H200, a pair's 20 instructions on the axis run at 60 % of the issue rate, its 28 off it at
// 70 % (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/cauchy/backward_pairs.cuh>
#include <gdn_cuda/kernels/structured/cauchy/backward_plan.cuh>
#include <gdn_cuda/kernels/structured/common.cuh>

namespace gdn_cuda::structured {

template <CauchyBackwardConfig kConfig>
struct CauchyBackward {
    using Io = ElementType<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    static constexpr bool kComplex = Io::kComplex;

    static constexpr int kSums = (kComplex ? 2 : 1) * (kConfig.wrt_points ? 1 : 2);  // per output
    using Shared = CauchyBackwardSharedPlan<kConfig, Real>;

    const CauchyBackwardArgs& args;

    // Offsets of the operands' rows.
    struct Rows {
        i64 residues, points, poles, grad;
    };

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
            return {d.re == Real{} ? r - r : r, Real{}};  // NaN for a point on a pole, as for complex dtypes
        }
        const Real square = d.re * d.re + d.im * d.im;
        if (!in_range(square)) [[unlikely]] {
            const Complex<double> wide{static_cast<double>(z.re) - w.re, static_cast<double>(z.im) - w.im};
            if (isinf(wide.re) || isinf(wide.im)) return {};
            const Complex<double> exact = quotient({1.0, 0.0}, wide);
            return {static_cast<Real>(exact.re), static_cast<Real>(exact.im)};
        }
        const Real scale = reciprocal_in_range(square);
        return {d.re * scale, -d.im * scale};
    }

    // Adds the terms of one pole and one point to the sums of an output: for poles, g D~ and g (D D)~; for points, (v D D)~.
    __device__ __forceinline__ static void add(Number& first, Number& second, const Number& z, const Number& w, const Number& v,
                                               const Number& g) {
        const Number d = inverse(z, w);
        if constexpr (kConfig.wrt_points) {
            add_product(first, {Real{1}, Real{}}, product(product(v, d), d));
        } else {
            add_product(first, g, d);
            add_product(second, g, product(d, d));
        }
    }

    // Reduces all threads' sums into the first row of shared memory, in a fixed order: within warps, where each shuffle
    // exchanges half of the remaining sums, then over warps. Ends in a barrier.
    template <int kCount>
    __device__ __forceinline__ static void block_reduce(Shared& shared, Real (&sums)[kCount]) {
        const int lane = threadIdx.x % 32;
        warp_reduce<kCount, 16>(sums, lane);
        Real* mine = shared.sums[threadIdx.x / 32] + lane * kCount / 32;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < (kCount + 31) / 32; ++i) mine[i] = sums[i];
        __syncthreads();
        static_assert(kCount <= kConfig.threads);
        if (threadIdx.x < kCount) {
            Real total{};
#pragma unroll
            for (int warp = 0; warp < kConfig.threads / 32; ++warp) total += shared.sums[warp][threadIdx.x];
            shared.sums[0][threadIdx.x] = total;
        }
        __syncthreads();
    }
    template <int kCount, int kDistance>
    __device__ __forceinline__ static void warp_reduce(Real* sums, int lane) {
        if constexpr (kDistance > 0) {
            constexpr int kLeft = kCount == 1 ? 1 : kCount / 2;
#pragma unroll
            for (int i = 0; i < kLeft; ++i) {
                const bool upper = lane & kDistance;
                const Real other = sums[kCount == 1 ? 0 : kLeft + i], sent = upper ? sums[i] : other;
                sums[i] = (upper ? other : sums[i]) + __shfl_xor_sync(~0u, sent, kDistance);
            }
            warp_reduce<kLeft, kDistance / 2>(sums, lane);
        }
    }

    // Sums the points of [begin, end) that Pairs handles and `before` does not. The first `outputs` threads each add the result
    // to `first` and `second` of their output. Afterwards [begin, end) has the thread's remaining points. Returns false if a
    // pole is out of range or a sum is not finite.
    template <class Pairs, class Before>
    __device__ __forceinline__ bool sum_pairs(Shared& shared, const Rows& rows, int first_output, Number& first, Number& second,
                                              int& begin, int& end, Before before) const {
        constexpr int kCount = Pairs::kSums;
        Real sums[kConfig.outputs * kCount]{};
        int left_begin = args.point_count, left_end = 0;
        {
            static_assert(sizeof(Real) == sizeof(float));
            typename Pairs::Pole poles[kConfig.outputs];
            bool fits = true;
#pragma unroll
            for (int i = 0; i < kConfig.outputs; ++i) {
                poles[i] = typename Pairs::Pole(pole_or_point(rows, first_output + i));
                fits &= poles[i].fits();
            }
            if (!fits) return false;  // uniform over the block
            const i64 point_step = kConfig.threads * args.points.step, grad_step = kConfig.threads * args.grad.step;
            auto* z_at = static_cast<const Number*>(args.points.data) + rows.points + begin * args.points.step;
            auto* g_at = static_cast<const Number*>(args.grad.data) + rows.grad + begin * args.grad.step;
            Number next_z{}, next_g{};
            if (begin < end) {
                next_z = *z_at;
                next_g = *g_at;
            }
#pragma unroll 1
            for (int l = begin; l < end; l += kConfig.threads) {
                const Number z = next_z, g = next_g;
                z_at += point_step;
                g_at += grad_step;
                if (l + kConfig.threads < end) {
                    next_z = *z_at;
                    next_g = *g_at;
                }
                if (before(z)) continue;
                if (Pairs::takes(z)) [[likely]] {
                    const typename Pairs::Point point(z, g);
#pragma unroll
                    for (int i = 0; i < kConfig.outputs; ++i) Pairs::add(sums + i * kCount, poles[i], point);
                } else {
                    left_begin = min(left_begin, l);
                    left_end = l + 1;
                }
            }
        }
        begin = left_begin;
        end = left_end;
        block_reduce(shared, sums);
        if (threadIdx.x < kConfig.outputs)
            Pairs::combine(first, second, shared.sums[0] + threadIdx.x * kCount,
                           pole_or_point(rows, first_output + static_cast<int>(threadIdx.x)));
        return !__syncthreads_or(!(isfinite(first.re) && isfinite(first.im) && isfinite(second.re) && isfinite(second.im)));
    }

    __device__ __forceinline__ Rows rows_at(unsigned row) const {
        Rows rows;
        set_row_offsets(args, row, RowOffset{args.residues, rows.residues}, RowOffset{args.points, rows.points},
                        RowOffset{args.poles, rows.poles}, RowOffset{args.grad, rows.grad});
        return rows;
    }
    __device__ __forceinline__ Number point(const Rows& rows, int l) const {
        return Io::load(args.points.data, rows.points + l * args.points.step);
    }
    __device__ __forceinline__ Number pole(const Rows& rows, int n) const {
        return Io::load(args.poles.data, rows.poles + n * args.poles.step);
    }
    __device__ __forceinline__ Number pole_or_point(const Rows& rows, int i) const {
        return kConfig.wrt_points ? point(rows, min(i, args.point_count - 1)) : pole(rows, min(i, args.pole_count - 1));
    }

    __device__ __forceinline__ void run(Shared& shared) {
        const int count = kConfig.wrt_points ? args.point_count : args.pole_count,
                  others = kConfig.wrt_points ? args.pole_count : args.point_count;
        const int groups = (count + kConfig.outputs - 1) / kConfig.outputs;
        const i64 row = blockIdx.x / groups;
        const int first_output = static_cast<int>(blockIdx.x % groups) * kConfig.outputs;
        const Rows rows = rows_at(row);

        Number total_first{}, total_second{};  // per output, in the first `outputs` threads
        int begin = threadIdx.x, end = others;
        bool pairs_done = false;  // points that CauchyPairs handles are summed
        if constexpr (kConfig.pairs()) {
            const bool on_axis = begin < end && CauchyAxisPairs::takes(point(rows, begin));
            const bool axis = 2 * __syncthreads_count(on_axis) > min(others, kConfig.threads);
            const auto on_axis_before = [axis](const Number& z) { return axis && CauchyAxisPairs::takes(z); };
            const auto sum_of = [&]<class Pairs>(Pairs, auto before) {
                return sum_pairs<Pairs>(shared, rows, first_output, total_first, total_second, begin, end, before);
            };
            pairs_done = !axis || sum_of(CauchyAxisPairs{}, [](const Number&) { return false; });
            if (pairs_done && __syncthreads_or(begin < end)) pairs_done = sum_of(CauchyPairs{}, on_axis_before);
            if (!pairs_done) {
                total_first = total_second = {};
                begin = threadIdx.x;
                end = others;
            }
        }
        if (!kConfig.pairs() || __syncthreads_or(begin < end)) {
            Real sums[kConfig.outputs * kSums];
            sum(rows, first_output, begin, end, pairs_done, sums);
            block_reduce(shared, sums);
            if (threadIdx.x < kConfig.outputs) {
                const Real* mine = shared.sums[0] + threadIdx.x * kSums;
                total_first.re += mine[0];
                if constexpr (kComplex) total_first.im += mine[1];
                if constexpr (!kConfig.wrt_points) total_second.re += mine[kSums / 2];
                if constexpr (!kConfig.wrt_points && kComplex) total_second.im += mine[3];
            }
        }
        if (threadIdx.x < kConfig.outputs && first_output + static_cast<int>(threadIdx.x) < count)
            finish(row, first_output + static_cast<int>(threadIdx.x), count, total_first, total_second, rows);
    }
    // This thread's sums over poles or points in [begin, end), without the points that CauchyPairs handles if `pairs_done`.
    __device__ __forceinline__ void sum(const Rows& rows, int first_output, int begin, int end, bool pairs_done,
                                        Real (&sums)[kConfig.outputs * kSums]) const {
        Number owned[kConfig.outputs], first[kConfig.outputs]{}, second[kConfig.outputs]{};
#pragma unroll
        for (int i = 0; i < kConfig.outputs; ++i) owned[i] = pole_or_point(rows, first_output + i);
#pragma unroll 1
        for (int other = begin; other < end; other += kConfig.threads) {
            Number x, with;  // a pole and its residue, or a point and its gradient
            if constexpr (kConfig.wrt_points) {
                x = pole(rows, other);
                with = Io::load(args.residues.data, rows.residues + other * args.residues.step);
            } else {
                x = point(rows, other);
                with = Io::load(args.grad.data, rows.grad + other * args.grad.step);
            }
            if constexpr (kConfig.pairs())
                if (pairs_done && CauchyPairs::takes(x)) continue;
#pragma unroll
            for (int i = 0; i < kConfig.outputs; ++i) {
                if constexpr (kConfig.wrt_points) {
                    add(first[i], second[i], owned[i], x, with, {});
                    if constexpr (kConfig.conj) add(first[i], second[i], owned[i], conjugate(x), conjugate(with), {});
                } else {
                    add(first[i], second[i], x, owned[i], {}, with);
                    // Sums of the conjugate pole are conjugated, hence its distances and g too.
                    if constexpr (kConfig.conj) add(first[i], second[i], conjugate(x), owned[i], {}, conjugate(with));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kConfig.outputs; ++i) {
            Real* mine = sums + i * kSums;
            mine[0] = first[i].re;
            if constexpr (kComplex) mine[1] = first[i].im;
            if constexpr (!kConfig.wrt_points) mine[kSums / 2] = second[i].re;
            if constexpr (!kConfig.wrt_points && kComplex) mine[3] = second[i].im;
        }
    }
    __device__ __forceinline__ void finish(i64 row, int output, int count, const Number& first, const Number& second,
                                           const Rows& rows) const {
        const i64 at = row * count + output;
        if constexpr (kConfig.wrt_points) {
            const Number x = product(Io::load(args.grad.data, rows.grad + output * args.grad.step), first);
            Io::store(args.dpoints, at, {-x.re, -x.im});
        } else {
            if (args.dresidues != nullptr) Io::store(args.dresidues, at, first);
            if (args.dpoles != nullptr)
                Io::store(
                    args.dpoles, at,
                    product(conjugate(Io::load(args.residues.data, rows.residues + output * args.residues.step)), second));
        }
    }
};

template <CauchyBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.least_blocks())
    cauchy_backward(const __grid_constant__ CauchyBackwardArgs args) {
    __shared__ typename CauchyBackward<kConfig>::Shared shared;
    CauchyBackward<kConfig>{args}.run(shared);
}

}  // namespace gdn_cuda::structured
