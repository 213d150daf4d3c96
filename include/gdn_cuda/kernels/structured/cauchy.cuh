// structured/cauchy: Cauchy sums out_l = sum over n of v_n / (z_l - w_n) for residues v, poles w and points z. With conj, each
// pole also counts with its conjugate: the terms are v_n / (z_l - w_n) + conj(v_n) / (z_l - conj(w_n)).
//
// A thread holds a few points in registers; tiles of poles and residues are in shared memory, read by broadcast. All rows of
// residues over the same poles use the same reciprocal. So do both poles of a conjugate pair, which form one fraction:
//
//     a = Re z - Re w, b = Im z - Im w, c = Im z + Im w      den = (a + ib)(a + ic) = a^2 - bc + 2ia Im z
//     num = v (a + ic) + conj(v) (a + ib) = 2 (Re v a - Im v Im w) + 2i Re v Im z
//
// b and c are the distances to the pole and to its conjugate along the imaginary axis; they are exact where they are small, so
// a point close to either loses no digits. Sums of tiles are added with Kahan compensation. A point is recomputed in fp64 if a
// sum of squares leaves the range, if the point coincides with a pole, or if the sum is not finite.
//
// For each tile, a warp decides from the ranges of its points and poles whether it can skip the range checks. In fp32 a
// fraction is then 2 (Re v s - Im v Im w) R, with s = a + i Im z and R = 1 / den (cauchy/pairs.cuh); factors that
// depend on the point alone are applied once per tile.
//
// Points on the imaginary axis, z = iy as in S4, take fewer operations: divided by iy, a pair's fraction is (odd - i even / y)
// / (2a - iu), with u = (a^2 - t Im w) / y - t and t = y - Im w.
//
// Bound: arithmetic, one reciprocal and 14 multiplies or adds per pair of poles and point, 9 on the axis; fewer for each
// further row. On an H200, at S4's points, 13 instructions per pair including prologue and epilogue, at 82 % of the issue rate
// (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/cauchy/pairs.cuh>
#include <gdn_cuda/kernels/structured/cauchy/plan.cuh>

namespace gdn_cuda::structured {

template <CauchyConfig kConfig>
struct Cauchy {
    using Io = ElementType<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    static constexpr bool kComplex = Io::kComplex;
    static constexpr int kParts = kConfig.parts();
    using Shared = CauchySharedPlan<kConfig, Real>;
    using PointSums = Number[kConfig.rows][kConfig.points];

    const CauchyArgs& args;
    i64 first_row;

    // weight = 1 / (z - w), with conj 1 / den. Returns false if the sum of squares leaves the range.
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

    // Min/max magnitude over a warp, compared as bit patterns; NaN sorts last.
    struct WarpMinMax {
        unsigned smallest = ~0u, largest = 0;

        __device__ __forceinline__ void add(float x) {
            const unsigned size = __float_as_uint(x) & 0x7fffffffu;
            smallest = min(smallest, size);
            largest = max(largest, size);
        }
        __device__ __forceinline__ float min_over_warp() const { return __uint_as_float(__reduce_min_sync(~0u, smallest)); }
        __device__ __forceinline__ float max_over_warp() const { return __uint_as_float(__reduce_max_sync(~0u, largest)); }
    };
    // Whether points on the imaginary axis and a tile's pairs need no range checks. Replacing |y| < `floor` by floor changes no
    // sum but its imaginary part, which scales with y; for |y| > `min_point` no sum of squares leaves the range.
    struct Range {
        static constexpr float kMaxPoint = 1e16f;       // |y|: bounds t and t^2
        static constexpr float kMaxPoleSquare = 1e20f;  // |w|^2: bounds a^2 / y, for y from 1e-16 |w|^2 on, and its square
        static constexpr float kMinASquared = 1e-24f;   // keeps 4 a^2, and 2 a even of small residues, normal

        float floor, min_point;

        __device__ __forceinline__ static Range of(const Shared& shared, int count) {
            constexpr float kNever = 1e38f;
            if constexpr (sizeof(Real) > sizeof(float)) return {0.f, kNever};
            WarpMinMax squares, a_squared;
#pragma unroll 1
            for (int n = static_cast<int>(threadIdx.x) % 32; n < count; n += 32) {
                const auto pair = shared.pairs[n];
                squares.add(pair.a_squared + pair.im * pair.im);
                a_squared.add(pair.a_squared);
            }
            const float square = squares.min_over_warp(), most = squares.max_over_warp();
            const bool holds_from = a_squared.min_over_warp() > kMinASquared && most < kMaxPoleSquare;
            return {square * rsqrtf(square) * 0x1p-26f, holds_from ? most / kMaxPoint : kNever};
        }
        __device__ __forceinline__ bool holds(const Number (&z)[kConfig.points]) const {
            WarpMinMax sizes;
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) sizes.add(static_cast<float>(z[p].im));
            const float nearest = sizes.min_over_warp(), furthest = sizes.max_over_warp();
            return (fmaxf(nearest, floor) > min_point) & (furthest < kMaxPoint);
        }
    };

    // Content of shared memory. If one tile holds all poles, it is loaded once for all tiles of points.
    struct Resident {
        enum { nothing, poles, pairs } content = nothing;
        Range range;  // for `pairs`
        bool fits;    // for `poles`: all are in the range of CauchyPairsAnywhere
    };

    // Offsets of a block's poles and residues. Rows over the same poles are consecutive in the last leading dimension.
    struct Tiles {
        i64 poles, residues, row_stride;
    };
    // Loads a tile's poles and residues; for points on the imaginary axis (kAxis), stores the constants of their fractions
    // instead.
    template <bool kAxis>
    __device__ __forceinline__ void load_tile(Shared& shared, const Tiles& tiles, int first, int count) const {
        const auto load_from = [&](const BroadcastOperand& from, i64 row, int n) {
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
                if constexpr (kConfig.pairs_anywhere()) {
                    if (row < 0) {
                        const CauchyPairsAnywhere::Pole pole(x);
                        shared.pairs_anywhere[n] = {pole.re, pole.im_squared.square, pole.im_squared.residual};
                    } else {
                        const Real re = CauchyPairsAnywhere::scaled(2 * x.re), im = CauchyPairsAnywhere::scaled(2 * x.im);
                        shared.residues_anywhere[row][n] = {re, im * load_from(args.poles, tiles.poles, n).im};
                    }
                }
            }
        }
    }
    // Adds a pole and its conjugate as one fraction, (even + i y odd) / (den + 2i a y) for z = iy, with range checks.
    __device__ __forceinline__ static void add_axis_pair(PointSums& parts, unsigned& recompute, const Shared& shared, int n,
                                                         const Number (&z)[kConfig.points]) {
        const auto pair = shared.pairs[n];
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const Real y = z[p].im, y_squared = y * y, den = pair.a_squared - (y - pair.im) * (y + pair.im),
                       square = den * den + pair.four_a_squared * y_squared, inverse = reciprocal_in_range(square);
            if (!in_range(square)) recompute |= 1u << p;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                const auto v = shared.pair_residues[row][n];
                parts[row][p].re += (v.even * den + v.odd_2a * y_squared) * inverse;
                parts[row][p].im += (v.odd * den - v.even_2a) * inverse * y;
            }
        }
    }
    // The same for a tile, without range checks. With one row there are registers to sum the even parts separately, so factors
    // that depend on the point alone are applied at the end.
    __device__ __forceinline__ static void add_axis_tile_unchecked(PointSums& parts, const Shared& shared, int count,
                                                                   float floor, const Number (&z)[kConfig.points]) {
        constexpr bool kSeparate = kConfig.rows == 1;
        constexpr int kAtOnce = 2;
        Number even_sums[kConfig.points]{};
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
                           one = reciprocal_in_range(u * u + pair.four_a_squared), u_inverse = u * one;
                const Number even_weight =
                    kSeparate ? Number{u_inverse, one} : Number{u_inverse * inverse[p], one * inverse[p]};
#pragma unroll
                for (int row = 0; row < kConfig.rows; ++row) {
                    const auto v = shared.pair_residues[row][n];
                    Number& even = kSeparate ? even_sums[p] : parts[row][p];
                    even.re += v.even * even_weight.re;
                    even.im -= v.even_2a * even_weight.im;
                    parts[row][p].re += v.odd_2a * one;
                    parts[row][p].im += v.odd * u_inverse;
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
            const Real part = z[p].im * inverse[p];  // 1 or -1, smaller for |y| < floor
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                Number& sum = parts[row][p];
                if constexpr (kSeparate) sum = {sum.re + even_sums[p].re * inverse[p], sum.im + even_sums[p].im * inverse[p]};
                sum.im *= part;
            }
        }
    }
    __device__ __forceinline__ static CauchyPairsAnywhere::Pole pole_anywhere(const Shared& shared, int n) {
        const auto pair = shared.pairs_anywhere[n];
        CauchyPairsAnywhere::Pole pole;
        pole.re = pair.re;
        pole.im_squared.square = pair.im_squared;
        pole.im_squared.residual = pair.residual;
        return pole;
    }
    // Whether a warp's points and a tile's pairs need no range checks.
    __device__ __forceinline__ static bool poles_fit(const Shared& shared, int count) {
        bool fit = true;
#pragma unroll 1
        for (int n = static_cast<int>(threadIdx.x) % 32; n < count; n += 32) fit &= pole_anywhere(shared, n).fits();
        return __all_sync(~0u, fit);
    }
    __device__ __forceinline__ static bool points_fit(const Number (&z)[kConfig.points]) {
        bool fit = kConfig.pairs_anywhere();
        if constexpr (kConfig.pairs_anywhere()) {
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) fit &= CauchyPairsAnywhere::takes(z[p]);
        }
        return __all_sync(~0u, fit);
    }
    // Adds a tile at arbitrary points, without range checks. With one row there are registers for a separate sum of the terms
    // with factor y, which is multiplied at the end; several rows use the same s R.
    __device__ __forceinline__ static void add_tile_unchecked(PointSums& parts, const Shared& shared, int count,
                                                              const Number (&z)[kConfig.points]) {
        Number times_y[kConfig.points]{};
        Real two_y[kConfig.points];
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) two_y[p] = 2 * z[p].im;
#pragma unroll 2
        for (int n = 0; n < count; ++n) {
            const auto pole = pole_anywhere(shared, n);
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) {
                const CauchyPairsAnywhere::Reciprocal one(pole, z[p].re, z[p].im, two_y[p]);
                if constexpr (kConfig.rows == 1) {
                    const auto v = shared.residues_anywhere[0][n];
                    const Real num = v.re * one.a - v.im_product;
                    parts[0][p].re += num * one.re;
                    parts[0][p].im -= num * one.im;
                    times_y[p].re += v.re * one.im;
                    times_y[p].im += v.re * one.re;
                } else {
                    const Number s_inverse{one.a * one.re + z[p].im * one.im, z[p].im * one.re - one.a * one.im};
#pragma unroll
                    for (int row = 0; row < kConfig.rows; ++row) {
                        const auto v = shared.residues_anywhere[row][n];
                        parts[row][p].re += v.re * s_inverse.re - v.im_product * one.re;
                        parts[row][p].im += v.re * s_inverse.im + v.im_product * one.im;
                    }
                }
            }
        }
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p)
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                Number& sum = parts[row][p];
                if constexpr (kConfig.rows == 1) sum = {sum.re + times_y[p].re * z[p].im, sum.im + times_y[p].im * z[p].im};
                sum = {sum.re * CauchyPairsAnywhere::kUnit, sum.im * CauchyPairsAnywhere::kUnit};
            }
    }
    __device__ __forceinline__ static void add_pole(PointSums& parts, unsigned& recompute, const Shared& shared, int n,
                                                    const Number (&z)[kConfig.points]) {
        const Number w{shared.poles[0][n], shared.poles[kParts - 1][n]};
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            Number weight{};
            if (!weigh(weight, z[p], w)) recompute |= 1u << p;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row)
                add(parts[row][p], {shared.residues[row][0][n], shared.residues[row][kParts - 1][n]}, weight, z[p], w);
        }
    }
    template <bool kAxis>
    __device__ __forceinline__ unsigned sum_up(Shared& shared, const Tiles& tiles, const Number (&z)[kConfig.points],
                                               PointSums& sums, PointSums& compensations, Resident& resident) const {
        constexpr auto kContent = kAxis ? Resident::pairs : Resident::poles;
        constexpr bool kAnywhere = !kAxis && kConfig.pairs_anywhere();
        const int poles_end = kConfig.one_tile ? kConfig.tile : args.pole_count;
        unsigned recompute = 0;
#pragma unroll 1
        for (int first = 0; first < poles_end; first += kConfig.tile) {
            const int count = min(kConfig.tile, args.pole_count - first);
            if (resident.content != kContent || poles_end > kConfig.tile) {
                __syncthreads();
                load_tile<kAxis>(shared, tiles, first, count);
                __syncthreads();
                resident.content = kContent;
                if constexpr (kAxis) resident.range = Range::of(shared, count);
                if constexpr (kAnywhere) resident.fits = poles_fit(shared, count);
            }
            PointSums parts{};
            if (kAxis && resident.range.holds(z)) {
                add_axis_tile_unchecked(parts, shared, count, resident.range.floor, z);
            } else if (kAnywhere && resident.fits && points_fit(z)) {
                if constexpr (kAnywhere) add_tile_unchecked(parts, shared, count, z);
            } else {
#pragma unroll 2
                for (int n = 0; n < count; ++n) {
                    if constexpr (kAxis)
                        add_axis_pair(parts, recompute, shared, n, z);
                    else
                        add_pole(parts, recompute, shared, n, z);
                }
            }
            if (kConfig.one_tile || first == 0)
                copy(sums, parts);
            else
                add_all_kahan(sums, compensations, parts);
        }
        return recompute;
    }

    // A pole that coincides with the point contributes residue * infinity, as if the point were slightly to its right.
    __device__ __forceinline__ Number recompute_in_fp64(i64 row, int point) const {
        const i64 poles = row_offset(args, args.poles, row), residues = row_offset(args, args.residues, row);
        const auto z =
            Io::template load<double>(args.points.data, row_offset(args, args.points, row) + point * args.points.step);
        Complex<double> sum{}, coincident{};
        const auto add_one = [&](const Complex<double>& v, const Complex<double>& w) {
            const Complex<double> d{z.re - w.re, z.im - w.im};
            if (d.re == 0 && d.im == 0) {
                coincident = {coincident.re + v.re, coincident.im + v.im};
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
        const auto with_coincident = [](double x, double residue) {
            return static_cast<Real>(residue == 0 ? x : x + residue * __longlong_as_double(0x7ff0000000000000ll));
        };
        return {with_coincident(sum.re, coincident.re), with_coincident(sum.im, coincident.im)};
    }

    __device__ __forceinline__ void run_points(Shared& shared, const Tiles& tiles, i64 points, int first_point,
                                               Resident& resident) const {
        Number z[kConfig.points];
        PointSums sums{}, compensations{};
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p)
            z[p] = Io::load(args.points.data,
                            points + min(first_point + p * kConfig.threads, args.point_count - 1) * args.points.step);
        bool off_axis = false;
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) off_axis |= z[p].re != 0;
        unsigned recompute;  // one bit per point
        if (kConfig.conj && !__syncthreads_or(off_axis))
            recompute = sum_up<true>(shared, tiles, z, sums, compensations, resident);
        else
            recompute = sum_up<false>(shared, tiles, z, sums, compensations, resident);
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const int point = first_point + p * kConfig.threads;
            if (point >= args.point_count) break;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                Io::store(args.out, (first_row + row) * args.point_count + point, sums[row][p]);
                if (!isfinite(sums[row][p].re + sums[row][p].im)) recompute |= 1u << p;
            }
        }
        // At the end and in one place, when no sums occupy registers any more.
        while (recompute != 0) [[unlikely]] {
            const int point = first_point + (__ffs(recompute) - 1) * kConfig.threads;
            recompute &= recompute - 1;
            if (point >= args.point_count) break;
#pragma unroll 1
            for (int row = 0; row < kConfig.rows; ++row)
                Io::store(args.out, (first_row + row) * args.point_count + point, recompute_in_fp64(first_row + row, point));
        }
    }
    __device__ __forceinline__ void run(Shared& shared) {
        const unsigned points_per_block = kConfig.points_per_block() * args.turns,
                       point_blocks = (args.point_count + points_per_block - 1) / points_per_block;
        first_row = static_cast<i64>(blockIdx.x / point_blocks) * kConfig.rows;
        const Tiles tiles{row_offset(args, args.poles, first_row), row_offset(args, args.residues, first_row),
                          kConfig.rows > 1 ? args.residues.stride[args.leading - 1] : 0};
        const i64 points = row_offset(args, args.points, first_row);
        Resident resident{};
        int first_point = static_cast<int>(blockIdx.x % point_blocks * points_per_block);
#pragma unroll 1
        for (int turn = 0; turn < args.turns && first_point < args.point_count; ++turn) {
            run_points(shared, tiles, points, first_point + static_cast<int>(threadIdx.x), resident);
            first_point += kConfig.points_per_block();
        }
    }
    __device__ __forceinline__ static void copy(PointSums& to, const PointSums& from) {
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row)
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) to[row][p] = from[row][p];
    }
    __device__ __forceinline__ static void add_all_kahan(PointSums& sums, PointSums& compensations, const PointSums& parts) {
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row)
#pragma unroll
            for (int p = 0; p < kConfig.points; ++p) {
                add_kahan(sums[row][p].re, compensations[row][p].re, parts[row][p].re);
                if constexpr (kComplex) add_kahan(sums[row][p].im, compensations[row][p].im, parts[row][p].im);
            }
    }
    // Kahan summation: sum += x; `residual` has the rounding error of the previous addition.
    __device__ __forceinline__ static void add_kahan(Real& sum, Real& residual, Real x) {
        const Real y = x - residual, total = sum + y;
        residual = (total - sum) - y;
        sum = total;
    }
};

template <CauchyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.least_blocks()) cauchy(const __grid_constant__ CauchyArgs args) {
    __shared__ CauchySharedPlan<kConfig, typename Cauchy<kConfig>::Real> shared;
    Cauchy<kConfig>{args, 0}.run(shared);
}

}  // namespace gdn_cuda::structured
