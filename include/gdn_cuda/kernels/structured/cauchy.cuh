// structured/cauchy: sums of residues over distances to poles, out_l = sum over n of v_n / (z_l - w_n), and with conj of
// v_n / (z_l - w_n) + conj(v_n) / (z_l - conj(w_n)).
//
// A thread has a few points in registers; poles and residues pass through shared memory, read by broadcast. A reciprocal serves
// all rows of residues over the same poles, and a conjugate pair, which is one fraction:
//
//     a = Re z - Re w, b = Im z - Im w, c = Im z + Im w      den = (a + ib)(a + ic) = a^2 - bc + 2ia Im z
//     num = v (a + ic) + conj(v) (a + ib) = 2 (Re v a - Im v Im w) + 2i Re v Im z
//
// b and c come from differences, so a pole close to its point keeps its digits. Sums of a tile of poles are added up with what
// rounding leaves. Points where a square leaves the range, which lie on a pole, or whose sum is not finite are summed once more
// in double precision.
//
// Points on the imaginary axis, z = iy as S4 has them, take fewer: divided by i y, a pair's fraction is
// (odd - i even / y) / (2a - iu), with u = (a^2 - t Im w) / y - t and t = y - Im w, and all that depends on the point alone is
// multiplied by when a tile is done. How far points and poles lie apart tells a warp, a tile of poles at a time, whether all
// squares stay in range.
//
// Bound: arithmetic, one reciprocal and 17 products or sums a pair of poles and a point, on the axis 9; fewer for a further
// row. On an H200, at S4's points, 13 instructions a pair with all that goes before and after, at 82 % of the rate at which
// instructions can be issued (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/cauchy_plan.cuh>
#include <gdn_cuda/kernels/structured/common.cuh>

namespace gdn_cuda::structured {

template <CauchyConfig kConfig>
struct Cauchy {
    using Io = Numbers<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    static constexpr bool kComplex = Io::kComplex;
    static constexpr int kParts = kConfig.parts();
    using Shared = CauchySharedPlan<kConfig, Real>;
    using Numbers2D = Number[kConfig.rows][kConfig.points];

    const CauchyArgs& args;
    i64 first_row;

    // 1 / (z - w), or of a conjugate pair what num is to be multiplied by. False where squares leave the range.
    __device__ __forceinline__ static bool weigh(Number& weight, const Number& z, const Number& w) {
        const Real a = z.re - w.re;
        if constexpr (!kComplex) {
            weight.re = reciprocal(a);
            return has_reciprocal(a);
        } else {
            const Real b = z.im - w.im;
            Number den{a, b};
            if constexpr (kConfig.conj) den = {a * a - b * (z.im + w.im), 2 * a * z.im};
            const Real square = den.re * den.re + den.im * den.im, inverse = reciprocal_in_range(square);
            weight = {den.re * inverse, -den.im * inverse};
            return in_range(square);
        }
    }
    __device__ __forceinline__ static void add(Number& sum, const Number& v, const Number& weight, const Number& z,
                                               const Number& w) {
        if constexpr (!kComplex) {
            sum.re += v.re * weight.re;
        } else {
            Number num = v;
            if constexpr (kConfig.conj) num = {2 * (v.re * (z.re - w.re) - v.im * w.im), 2 * v.re * z.im};
            sum.re += num.re * weight.re - num.im * weight.im;
            sum.im += num.re * weight.im + num.im * weight.re;
        }
    }

    // Of a warp's numbers. Sizes are ordered as their bits are, and what is no number is the most.
    struct Extremes {
        unsigned from = ~0u, to = 0;

        __device__ __forceinline__ void add(float x) {
            const unsigned size = __float_as_uint(x) & 0x7fffffffu;
            from = min(from, size);
            to = max(to, size);
        }
        __device__ __forceinline__ float least() const { return __uint_as_float(__reduce_min_sync(~0u, from)); }
        __device__ __forceinline__ float most() const { return __uint_as_float(__reduce_max_sync(~0u, to)); }
    };
    // Of points on the imaginary axis and a tile's pairs. Closer to 0 than `floor`, sums do not change, but for their imaginary
    // parts, which shrink with y; from `least` on, no square leaves the range, so that nobody need look.
    struct Range {
        static constexpr float kFurthest = 1e16f;    // of a point: t, and t^2
        static constexpr float kMostSquare = 1e20f;  // of a pole's size: a^2 / y, with y from 1e-16 of it on, and its square
        static constexpr float kLeastASquared = 1e-24f;  // 4 a^2, and 2 a even with what is small of residues

        float floor, least;

        __device__ __forceinline__ static Range of(const Shared& shared, int count) {
            constexpr float kNever = 1e38f;
            if constexpr (sizeof(Real) > sizeof(float)) return {0.f, kNever};
            Extremes squares, a_squared;
#pragma unroll 1
            for (int n = static_cast<int>(threadIdx.x) % 32; n < count; n += 32) {
                const auto pair = shared.pairs[n];
                squares.add(pair.a_squared + pair.im * pair.im);
                a_squared.add(pair.a_squared);
            }
            const float square = squares.least(), most = squares.most();
            const bool holds_from = a_squared.least() > kLeastASquared && most < kMostSquare;
            return {square * rsqrtf(square) * 0x1p-26f, holds_from ? most / kFurthest : kNever};
        }
        __device__ __forceinline__ bool holds(const Number (&z)[kConfig.points]) const {
            Extremes sizes;
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) sizes.add(static_cast<float>(z[p].im));
            const float nearest = sizes.least(), furthest = sizes.most();
            return (fmaxf(nearest, floor) > least) & (furthest < kFurthest);
        }
    };

    // What shared memory has of the only tile of poles: it stays there from turn to turn.
    struct Brought {
        enum { nothing, numbers, pairs } what = nothing;
        Range range;  // of pairs
    };

    // Where a block's poles and residues begin. Its rows over the same poles follow each other in the last leading dimension.
    struct Tiles {
        i64 poles, residues, row_stride;
    };
    // Poles and residues of a tile, as they are; or, for points on the imaginary axis, the constants of their fractions.
    template <bool kAxis>
    __device__ __forceinline__ void bring_tile(Shared& shared, const Tiles& tiles, int first, int count) const {
        const auto load_from = [&](const Lines& from, i64 row, int n) {
            return Io::load(from.data, row + (first + n) * from.step);
        };
        for (int i = threadIdx.x; i < count * (1 + kConfig.rows); i += kConfig.threads) {
            const int n = i % count, row = i / count - 1;
            const i64 residues = tiles.residues + row * tiles.row_stride;
            if constexpr (kAxis) {
                const Number w = load_from(args.poles, tiles.poles, n);
                const Real a = -w.re;
                if (row < 0) {
                    shared.pairs[n] = {fabs(w.im), a * a, 4 * a * a};
                } else {
                    const Number v = load_from(args.residues, residues, n);
                    const Real even = 2 * (v.re * a - v.im * w.im), odd = 2 * v.re;
                    shared.pair_residues[row][n] = {even, odd, 2 * a * even, 2 * a * odd};
                }
            } else {
                const Number x = row < 0 ? load_from(args.poles, tiles.poles, n) : load_from(args.residues, residues, n);
                Real(&to)[kParts][kConfig.tile] = row < 0 ? shared.poles : shared.residues[row];
                to[0][n] = x.re;
                if constexpr (kComplex) to[kParts - 1][n] = x.im;
            }
        }
    }
    // With a pole and its conjugate as one fraction, (even + i y odd) / (den + 2i a y) for z = iy.
    __device__ __forceinline__ static void add_pairs(Numbers2D& parts, unsigned& careful, const Shared& shared, int n,
                                                     const Number (&z)[kConfig.points]) {
        const auto pair = shared.pairs[n];
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const Real y = z[p].im, y_squared = y * y, den = pair.a_squared - (y - pair.im) * (y + pair.im),
                       square = den * den + pair.four_a_squared * y_squared, inverse = reciprocal_in_range(square);
            if (!in_range(square)) careful |= 1u << p;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                const auto v = shared.pair_residues[row][n];
                parts[row][p].re += (v.even * den + v.odd_2a * y_squared) * inverse;
                parts[row][p].im += (v.odd * den - v.even_2a) * inverse * y;
            }
        }
    }
    // The same in range. What depends on the point alone is multiplied by last, if registers hold sums of both parts without.
    __device__ __forceinline__ static void add_tile_in_range(Numbers2D& parts, const Shared& shared, int count, float floor,
                                                             const Number (&z)[kConfig.points]) {
        constexpr bool kApart = kConfig.rows == 1;
        constexpr int kAtOnce = 2;
        Number apart[kConfig.points]{};
        Real y[kConfig.points], inverse[kConfig.points];
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            y[p] = fmax(fabs(z[p].im), static_cast<Real>(floor));
            inverse[p] = reciprocal_in_range(y[p]);
        }
        const auto add_one = [&](int n) {
            const auto pair = shared.pairs[n];
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) {
                const Real t = y[p] - pair.im, u = (pair.a_squared - t * pair.im) * inverse[p] - t,
                           one = reciprocal_in_range(u * u + pair.four_a_squared), of_u = u * one;
                const Number of_even = kApart ? Number{of_u, one} : Number{of_u * inverse[p], one * inverse[p]};
#pragma unroll
                for (int row = 0; row < kConfig.rows; ++row) {
                    const auto v = shared.pair_residues[row][n];
                    Number& even = kApart ? apart[p] : parts[row][p];
                    even.re += v.even * of_even.re;
                    even.im -= v.even_2a * of_even.im;
                    parts[row][p].re += v.odd_2a * one;
                    parts[row][p].im += v.odd * of_u;
                }
            }
        };
        int n = 0;
#pragma unroll 1
        for (; n + kAtOnce <= count; n += kAtOnce)
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) add_one(n + i);
#pragma unroll 1
        for (; n < count; ++n) add_one(n);
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const Real part = z[p].im * inverse[p];  // 1 or -1, and less close to 0
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                Number& sum = parts[row][p];
                if constexpr (kApart) sum = {sum.re + apart[p].re * inverse[p], sum.im + apart[p].im * inverse[p]};
                sum.im *= part;
            }
        }
    }
    __device__ __forceinline__ static void add_each(Numbers2D& parts, unsigned& careful, const Shared& shared, int n,
                                                    const Number (&z)[kConfig.points]) {
        const Number w{shared.poles[0][n], shared.poles[kParts - 1][n]};
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            Number weight{};
            if (!weigh(weight, z[p], w)) careful |= 1u << p;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row)
                add(parts[row][p], {shared.residues[row][0][n], shared.residues[row][kParts - 1][n]}, weight, z[p], w);
        }
    }
    template <bool kAxis>
    __device__ __forceinline__ unsigned sum_up(Shared& shared, const Tiles& tiles, const Number (&z)[kConfig.points],
                                               Numbers2D& sums, Numbers2D& rests, Brought& brought) const {
        constexpr auto kBrings = kAxis ? Brought::pairs : Brought::numbers;
        const int poles_end = kConfig.one_tile ? kConfig.tile : args.pole_count;
        unsigned careful = 0;
#pragma unroll 1
        for (int first = 0; first < poles_end; first += kConfig.tile) {
            const int count = min(kConfig.tile, args.pole_count - first);
            if (brought.what != kBrings || poles_end > kConfig.tile) {
                __syncthreads();
                bring_tile<kAxis>(shared, tiles, first, count);
                __syncthreads();
                brought.what = kBrings;
                if constexpr (kAxis) brought.range = Range::of(shared, count);
            }
            Numbers2D parts{};
            if (kAxis && brought.range.holds(z)) {
                add_tile_in_range(parts, shared, count, brought.range.floor, z);
            } else {
#pragma unroll 2
                for (int n = 0; n < count; ++n) {
                    if constexpr (kAxis)
                        add_pairs(parts, careful, shared, n, z);
                    else
                        add_each(parts, careful, shared, n, z);
                }
            }
            if (kConfig.one_tile || first == 0)
                copy(sums, parts);
            else
                add_with_rests(sums, rests, parts);
        }
        return careful;
    }

    // A point once more, in double precision. Residues on the point itself are as if it lay a little to the right of them.
    __device__ __forceinline__ Number sum_carefully(i64 row, int point) const {
        const i64 poles = line_of(args, args.poles, row), residues = line_of(args, args.residues, row);
        const auto z = Io::template load<double>(args.points.data, line_of(args, args.points, row) + point * args.points.step);
        Complex<double> sum{}, met{};
        const auto add_one = [&](const Complex<double>& v, const Complex<double>& w) {
            const Complex<double> d{z.re - w.re, z.im - w.im};
            if (d.re == 0 && d.im == 0) {
                met = {met.re + v.re, met.im + v.im};
            } else if constexpr (kComplex) {
                const auto one = quotient(v, d);
                sum = {sum.re + one.re, sum.im + one.im};
            } else {
                sum.re += v.re / d.re;
            }
        };
        for (int n = 0; n < args.pole_count; ++n) {
            const auto v = Io::template load<double>(args.residues.data, residues + n * args.residues.step);
            const auto w = Io::template load<double>(args.poles.data, poles + n * args.poles.step);
            add_one(v, w);
            if (kConfig.conj) add_one({v.re, -v.im}, {w.re, -w.im});
        }
        const auto with_met = [](double x, double residue) {
            return static_cast<Real>(residue == 0 ? x : x + residue * __longlong_as_double(0x7ff0000000000000ll));
        };
        return {with_met(sum.re, met.re), with_met(sum.im, met.im)};
    }

    __device__ __forceinline__ void run_points(Shared& shared, const Tiles& tiles, i64 points, int first_point,
                                               Brought& brought) const {
        Number z[kConfig.points];
        Numbers2D sums{}, rests{};
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p)
            z[p] = Io::load(args.points.data,
                            points + min(first_point + p * kConfig.threads, args.point_count - 1) * args.points.step);
        bool elsewhere = false;
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) elsewhere |= z[p].re != 0;
        unsigned careful;  // a bit a point
        if (kConfig.conj && !__syncthreads_or(elsewhere))
            careful = sum_up<true>(shared, tiles, z, sums, rests, brought);
        else
            careful = sum_up<false>(shared, tiles, z, sums, rests, brought);
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const int point = first_point + p * kConfig.threads;
            if (point >= args.point_count) break;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                Io::store(args.out, (first_row + row) * args.point_count + point, sums[row][p]);
                if (!isfinite(sums[row][p].re + sums[row][p].im)) careful |= 1u << p;
            }
        }
        // Last, and in one place, where no sums are in registers any more.
        while (careful != 0) [[unlikely]] {
            const int point = first_point + (__ffs(careful) - 1) * kConfig.threads;
            careful &= careful - 1;
            if (point >= args.point_count) break;
#pragma unroll 1
            for (int row = 0; row < kConfig.rows; ++row)
                Io::store(args.out, (first_row + row) * args.point_count + point, sum_carefully(first_row + row, point));
        }
    }
    __device__ __forceinline__ void run(Shared& shared) {
        const unsigned points_of_all = kConfig.points_per_block() * args.turns,
                       blocks_of_points = (args.point_count + points_of_all - 1) / points_of_all;
        first_row = static_cast<i64>(blockIdx.x / blocks_of_points) * kConfig.rows;
        const Tiles tiles{line_of(args, args.poles, first_row), line_of(args, args.residues, first_row),
                          kConfig.rows > 1 ? args.residues.stride[args.leading - 1] : 0};
        const i64 points = line_of(args, args.points, first_row);
        Brought brought{};
        int first_point = static_cast<int>(blockIdx.x % blocks_of_points * points_of_all);
#pragma unroll 1
        for (int turn = 0; turn < args.turns && first_point < args.point_count; ++turn) {
            run_points(shared, tiles, points, first_point + static_cast<int>(threadIdx.x), brought);
            first_point += kConfig.points_per_block();
        }
    }
    __device__ __forceinline__ static void copy(Numbers2D& to, const Numbers2D& from) {
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row)
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) to[row][p] = from[row][p];
    }
    __device__ __forceinline__ static void add_with_rests(Numbers2D& sums, Numbers2D& rests, const Numbers2D& parts) {
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row)
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) {
                add_with_rest(sums[row][p].re, rests[row][p].re, parts[row][p].re);
                if constexpr (kComplex) add_with_rest(sums[row][p].im, rests[row][p].im, parts[row][p].im);
            }
    }
    // sum += x, and what that lost of the last one (Kahan).
    __device__ __forceinline__ static void add_with_rest(Real& sum, Real& rest, Real x) {
        const Real y = x - rest, total = sum + y;
        rest = (total - sum) - y;
        sum = total;
    }
};

template <CauchyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.least_blocks()) cauchy(const __grid_constant__ CauchyArgs args) {
    __shared__ CauchySharedPlan<kConfig, typename Cauchy<kConfig>::Real> shared;
    Cauchy<kConfig>{args, 0}.run(shared);
}

}  // namespace gdn_cuda::structured
