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
// Points on the imaginary axis, as S4 has them, leave less of that to each point; and how far from poles a block's points are
// at least tells, a tile of poles at a time, that no square leaves the range.
//
// Bound: arithmetic, one reciprocal and 17 products or sums a pair of poles and a point, on the axis 10; fewer for a further
// row. On an H200, at S4's points, two thirds of the rate of the 12 instructions that a pair takes
// (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/cauchy_common.cuh>

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

    // Points on the imaginary axis, between so far and so far from 0.
    struct Span {
        float nearest, furthest;

        // Whether no square of a pair's fraction leaves the range, with a^2 and im of the pole: then nobody need look.
        __device__ __forceinline__ bool allows(float a_squared, float im) const {
            const float inside = fmaxf(fmaxf(nearest - fabsf(im), fabsf(im) - furthest), 0.f);
            return furthest < 1e8f && a_squared + im * im < 1e16f &&
                   (a_squared + inside * inside) * (a_squared + im * im) > 1e-34f;
        }
    };
    __device__ __forceinline__ static Span span_of(Shared& shared, const Number (&z)[kConfig.points]) {
        if constexpr (sizeof(Real) > sizeof(float)) return {0.f, __uint_as_float(0x7f800000u)};
        unsigned nearest = ~0u, furthest = 0;  // sizes are ordered as their bits are; NaN is the furthest
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const unsigned size = __float_as_uint(static_cast<float>(z[p].im)) & 0x7fffffffu;
            nearest = min(nearest, size);
            furthest = max(furthest, size);
        }
        if (threadIdx.x == 0) {
            shared.nearest = ~0u;
            shared.furthest = 0;
        }
        __syncthreads();
        atomicMin(&shared.nearest, nearest);
        atomicMax(&shared.furthest, furthest);
        __syncthreads();
        return {__uint_as_float(shared.nearest), __uint_as_float(shared.furthest)};
    }

    // What shared memory has of the only tile of poles: it stays there from turn to turn.
    enum class Brought { nothing, numbers, pairs };

    // Where a block's poles and residues begin. Its rows over the same poles follow each other in the last leading dimension.
    struct Tiles {
        i64 poles, residues, row_stride;
    };
    // Poles and residues of a tile, as they are; or, for points on the imaginary axis, the constants of their fractions.
    template <bool kAxis>
    __device__ __forceinline__ void bring_tile(Shared& shared, const Tiles& tiles, int first, int count) const {
        const auto load_from = [&](const CauchyOperand& from, i64 row, int n) {
            return Io::load(from.data, row + (first + n) * from.step);
        };
        for (int i = threadIdx.x; i < count * (1 + kConfig.rows); i += kConfig.threads) {
            const int n = i % count, row = i / count - 1;
            const i64 residues = tiles.residues + row * tiles.row_stride;
            if constexpr (kAxis) {
                const Number w = load_from(args.poles, tiles.poles, n);
                const Real a = -w.re;
                if (row < 0) {
                    shared.pairs[n] = {w.im, a * a, 4 * a * a};
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
    __device__ __forceinline__ static bool allowed(const Shared& shared, const Span& span, int count) {
        bool all = true;
        for (int n = threadIdx.x; n < count; n += kConfig.threads)
            all &= span.allows(static_cast<float>(shared.pairs[n].a_squared), static_cast<float>(shared.pairs[n].im));
        return __syncthreads_and(all) != 0;
    }
    // With a pole and its conjugate as one fraction, (even + i y odd) / (den + 2i a y) for z = iy.
    template <bool kLook>
    __device__ __forceinline__ static void add_pairs(Numbers2D& parts, unsigned& careful, const Shared& shared, int n,
                                                     const Number (&z)[kConfig.points]) {
        const auto pair = shared.pairs[n];
#pragma unroll
        for (int p = 0; p < kConfig.points; ++p) {
            const Real y = z[p].im, y_squared = y * y, den = pair.a_squared - (y - pair.im) * (y + pair.im),
                       square = den * den + pair.four_a_squared * y_squared, inverse = reciprocal_in_range(square);
            if (kLook && !in_range(square)) careful |= 1u << p;
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row) {
                const auto v = shared.pair_residues[row][n];
                parts[row][p].re += (v.even * den + v.odd_2a * y_squared) * inverse;
                parts[row][p].im += (v.odd * den - v.even_2a) * inverse;  // times y, when the tile is done
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
        constexpr Brought kBrings = kAxis ? Brought::pairs : Brought::numbers;
        unsigned careful = 0;
        Span span{};
        if constexpr (kAxis) span = span_of(shared, z);
#pragma unroll 1
        for (int first = 0; first < args.pole_count; first += kConfig.tile) {
            const int count = min(kConfig.tile, args.pole_count - first);
            if (brought != kBrings || args.pole_count > kConfig.tile) {
                __syncthreads();
                bring_tile<kAxis>(shared, tiles, first, count);
                __syncthreads();
            }
            Numbers2D parts{};
            if (kAxis && allowed(shared, span, count)) {
#pragma unroll 2
                for (int n = 0; n < count; ++n) add_pairs<false>(parts, careful, shared, n, z);
            } else {
#pragma unroll 2
                for (int n = 0; n < count; ++n) {
                    if constexpr (kAxis)
                        add_pairs<true>(parts, careful, shared, n, z);
                    else
                        add_each(parts, careful, shared, n, z);
                }
            }
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row)
#pragma unroll
                for (int p = 0; p < kConfig.points; ++p) {
                    add_with_rest(sums[row][p].re, rests[row][p].re, parts[row][p].re);
                    if constexpr (kComplex)
                        add_with_rest(sums[row][p].im, rests[row][p].im, parts[row][p].im * (kAxis ? z[p].im : Real{1}));
                }
        }
        brought = kBrings;
        return careful;
    }

    // A point once more, in double precision. Residues on the point itself are as if it lay a little to the right of them.
    __device__ __forceinline__ Number sum_carefully(i64 row, int point) const {
        const i64 poles = row_of(args, args.poles, row), residues = row_of(args, args.residues, row);
        const auto z = Io::template load<double>(args.points.data, row_of(args, args.points, row) + point * args.points.step);
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
        const Tiles tiles{row_of(args, args.poles, first_row), row_of(args, args.residues, first_row),
                          kConfig.rows > 1 ? args.residues.stride[args.leading - 1] : 0};
        const i64 points = row_of(args, args.points, first_row);
        Brought brought = Brought::nothing;
        int first_point = static_cast<int>(blockIdx.x % blocks_of_points * points_of_all);
#pragma unroll 1
        for (int turn = 0; turn < args.turns && first_point < args.point_count; ++turn) {
            run_points(shared, tiles, points, first_point + static_cast<int>(threadIdx.x), brought);
            first_point += kConfig.points_per_block();
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
