// structured/toeplitz_generators: computes structured/toeplitz_eliminate's input from a Toeplitz matrix and right-hand sides in
// the caller's dtype: generators of C = F T (F D)^-1 (see toeplitz_gko.cuh), F times the right-hand sides, and as the last
// column F times the condition probe's random signs. T is scaled by a power of two, to keep squares of pivots in range. For
// fp64 input, T and the right-hand sides are also scaled before they are summed, to keep the sums in range.
//
// Transforms of any length are direct sums in fp64: n^2 terms cost little compared with the n dependent steps of the
// elimination. A block has 64 indices of two right-hand sides and four threads per index, which take interleaved stretches of
// terms. Each thread advances a twiddle of its own and recomputes it from the angle every few terms. Every block computes the
// scale itself.
//
// Bound: fp64 arithmetic, 14 operations per real term and 20 per complex one. On an H200 8192 rows take 0.2 ms, a third of that
// bound; the elimination takes 8.1 ms.
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/generators_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/terms.cuh>

namespace gdn_cuda::structured {

template <ToeplitzGeneratorsConfig kConfig>
struct ToeplitzGenerators {
    using Shared = ToeplitzGeneratorsSharedPlan<kConfig>;
    using Io = ElementType<kConfig.io>;
    using Stored = typename Shared::Number;
    using Number = ComplexNumber<double>;
    using Terms = ToeplitzTerms<kConfig.io, kConfig.kColumns>;
    static constexpr int kThreads = kConfig.kThreads, kColumns = kConfig.kColumns, kTwiddleRun = 16;
    static constexpr int kStretch = kThreads / kConfig.kParts;

    const ToeplitzGeneratorsArgs& args;
    Shared& shared;
    unsigned system;
    i64 first_column;
    int first_index;

    __device__ __forceinline__ static Number number(const Stored& x) { return {x.re, x.im}; }
    __device__ __forceinline__ static Stored stored(const Number& x) { return {x.re, x.im}; }
    // sum + x * twiddle, without the products with a zero imaginary part of real x.
    template <bool kComplex>
    __device__ __forceinline__ static Number plus(const Number& sum, const Stored& x, const Number& twiddle) {
        if constexpr (kComplex) return sum.plus(number(x), twiddle);
        return {fma(x.re, twiddle.re, sum.re), fma(x.re, twiddle.im, sum.im)};
    }

    __device__ __forceinline__ void run() {
        const int n = args.n, thread = static_cast<int>(threadIdx.x);
        const int each_of = thread % kConfig.kRows, stretch = thread / kConfig.kRows * kStretch;
        const int i = min(first_index + each_of, n - 1);
        const Number step = unit_at(-2.0 * i / n);
        const double before = Terms::scale_before_sums(args, system, shared.reduced[0]);
        const typename Terms::Rights rights{args.input, args.input_column_stride, first_column, before};
        Number left{}, right{}, rhs[kColumns]{};
        typename Terms::Size size;
#pragma unroll 1
        for (int begin = 0; begin < n; begin += kThreads) {
            if (begin + thread < n) Terms::load_term(shared.staged[thread], args, rights, system, begin + thread, size);
            __syncthreads();
            const int end = min(stretch + kStretch, n - begin);
#pragma unroll 1
            for (int from = stretch; from < end; from += kTwiddleRun) {
                Number twiddle = unit_at(-2.0 * (static_cast<i64>(i) * (begin + from) % n) / n);
#pragma unroll 2
                for (int t = from; t < min(from + kTwiddleRun, end); ++t) {
                    const auto& staged = shared.staged[t];
                    left = plus<Io::kComplex>(left, staged.left, twiddle);
                    right = plus<true>(right, staged.right, twiddle.conjugate());
#pragma unroll
                    for (int c = 0; c < kColumns; ++c) rhs[c] = plus<Io::kComplex>(rhs[c], staged.rhs[c], twiddle);
                    twiddle = twiddle * step;
                }
            }
            __syncthreads();
        }
        auto& mine = shared.sums[thread / kConfig.kRows][each_of];
        mine.left = stored(left);
        mine.right = stored(right);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) mine.rhs[c] = stored(rhs[c]);
        size.over_block(shared.reduced);
        const double scale = size.scale();
        if (thread == 0 && first_index == 0 && first_column == 0) {
            auto* scales = static_cast<double*>(args.scales) + 2 * static_cast<i64>(system);
            scales[0] = scale;
            scales[1] = size.scaled_norm();
        }
        __syncthreads();
        if (thread < kConfig.kRows && first_index + thread < n) write(scale, 1 / sqrt(static_cast<double>(n)));
    }

    __device__ __forceinline__ void write(double scale, double each) const {
        const int n = args.n, r = static_cast<int>(threadIdx.x), i = first_index + r;
        const auto sum = [&](const auto& of) {
            Number all = number(of(shared.sums[0][r]));
#pragma unroll
            for (int p = 1; p < kConfig.kParts; ++p) all = all + number(of(shared.sums[p][r]));
            return all;
        };
        if (first_column == 0) {
            auto* left = static_cast<Stored*>(args.left) + 2LL * system * n + i;
            auto* right = static_cast<Stored*>(args.right) + 2LL * system * n + i;
            left[0] = {each, 0};
            left[n] = stored(sum([](const auto& x) { return x.left; }) * (scale * each));
            right[0] = stored(sum([](const auto& x) { return x.right; }) * (scale * each));
            right[n] = stored(unit_at(static_cast<double>((n - 1LL) * (2 * i + 1) % (2 * n)) / n) * each);
        }
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
            if (first_column + c <= args.columns)
                static_cast<Stored*>(args.rhs)[(static_cast<i64>(system) * (args.columns + 1) + first_column + c) * n + i] =
                    stored(sum([&](const auto& x) { return x.rhs[c]; }) * each);
    }
};

// A minimum of two blocks per SM: otherwise ptxas limits registers for four on sm_100a, and spills.
template <ToeplitzGeneratorsConfig kConfig>
__global__ void __launch_bounds__(kConfig.kThreads, 2)
    toeplitz_generators(const __grid_constant__ ToeplitzGeneratorsArgs args) {
    __shared__ ToeplitzGeneratorsSharedPlan<kConfig> shared;
    const auto tiles = static_cast<unsigned>((args.n + kConfig.kRows - 1) / kConfig.kRows);
    const auto parts = static_cast<unsigned>(args.columns / kConfig.kColumns + 1);  // blocks per system and tile of indices
    const unsigned block = blockIdx.x / tiles;
    ToeplitzGenerators<kConfig> kernel{args, shared, block / parts, static_cast<i64>(block % parts) * kConfig.kColumns,
                                       static_cast<int>(blockIdx.x % tiles) * kConfig.kRows};
    kernel.run();
}

}  // namespace gdn_cuda::structured
