// structured/toeplitz_matvec: T x or T^t x, T[i, j] = column[i - j] below the diagonal and on it, row[j - i] above.
//
// Small systems form their sums: a block has 32 rows of a system, a lane each, and its warps share the columns of T.
//
// Others are a convolution by transforms in shared memory. T is the corner of a circulant matrix of order N = 2^a >= 2 n for
// complex numbers, and for real ones of a skew-circulant one of order 2 M, M = 2^a >= n: of the products of polynomials
// modulo X^(2 M) + 1 = (X^M - i)(X^M + i) one factor is enough, so M complex numbers do, x_j + i x_(M + j), each turned by
// e^(i pi j / 2 M), which makes X^M - i cyclic. x has no upper half, and the real part of the product is the result. The
// transform of T stays in registers for all right-hand sides of a block, in the order in which the transform leaves it.
//
// Bound: for one right-hand side latency, three transforms of up to 5 passes and a barrier each; for many, shared memory. On an
// H200 1.4 us above an empty launch for 4 systems of 256, 10 for 64 of 1024 (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/common/fft.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_matvec_plan.cuh>

namespace gdn_cuda::structured {

template <ToeplitzMatvecConfig kConfig>
struct ToeplitzMatvec {
    using Io = Numbers<kConfig.io>;
    using Real = typename Io::Real;
    using Number = ComplexNumber<Real>;
    static constexpr int kGroups = kConfig.direct() ? 1 : kConfig.groups();
    using Fft = BlockFft<Real, kConfig.threads, kGroups>;
    static constexpr int kRows = ToeplitzMatvecConfig::kRows, kMost = ToeplitzMatvecConfig::kMostDirect;

    const ToeplitzMatvecArgs& args;
    i64 column, row, x, out;  // where those of this block's system begin

    __device__ __forceinline__ ToeplitzMatvec(const ToeplitzMatvecArgs& args, unsigned system)
        : args(args),
          column(system_of(args, args.column, system)),
          row(system_of(args, args.row, system)),
          x(system_of(args, args.x, system)),
          out(static_cast<i64>(system) * args.n * args.columns) {}

    __device__ __forceinline__ Number load(const CauchyOperand& from, i64 at) const {
        const auto number = Io::load(from.data, at);
        return {number.re, number.im};
    }
    // Of diagonal i - j of what is multiplied by: row[0] is never read.
    __device__ __forceinline__ Number diagonal(int d) const {
        if (args.transpose && d != 0) d = -d;
        return d >= 0 ? load(args.column, column + d * args.column.step) : load(args.row, row - d * args.row.step);
    }
    __device__ __forceinline__ Number right(int j, i64 k) const {
        return load(args.x, x + j * args.x.step + k * args.x_column_stride);
    }
    __device__ __forceinline__ void store(int i, i64 k, const Number& y) const {
        Io::store(args.out, out + i * args.columns + k, {y.re, y.im});
    }

    // ---- by transforms

    // e^(i pi j / 2 M) for the numbers of a group: one by the angle, the others by what lies between them.
    struct Turns {
        Number first;
        __device__ __forceinline__ explicit Turns(const Fft& fft, int group)
            : first(unit_at(static_cast<Real>(Fft::stands_for(group)) / static_cast<Real>(2 * fft.size()))) {}
        __device__ __forceinline__ Number of(int i) const {
            constexpr Real kCosine[kFftEach] = {static_cast<Real>(1.0),
                                                static_cast<Real>(0.98078528040323044913),
                                                static_cast<Real>(0.92387953251128675613),
                                                static_cast<Real>(0.83146961230254523708),
                                                static_cast<Real>(0.70710678118654752440),
                                                static_cast<Real>(0.55557023301960222474),
                                                static_cast<Real>(0.38268343236508977173),
                                                static_cast<Real>(0.19509032201612826785)};
            return i == 0 ? first : first * Number{kCosine[i], kCosine[kFftEach - i]};
        }
    };

    __device__ __forceinline__ void transform_diagonals(const Fft& fft, typename Fft::Numbers& spectrum) const {
        const Real scale = Real{1} / static_cast<Real>(fft.size());
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const Turns turns(fft, group);
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) {
                const int j = fft.natural(group, i), back = fft.size() - j;
                const bool is_below = fft.active(group) && j < args.n, is_above = fft.active(group) && back < args.n;
                if constexpr (Io::kComplex) {  // never both: N >= 2 n
                    spectrum[group][i] = is_below || is_above ? diagonal(is_below ? j : -back) : Number{};
                } else {
                    const Real below = is_below ? diagonal(j).re : Real{}, above = is_above ? diagonal(-back).re : Real{};
                    spectrum[group][i] = Number{below, -above} * turns.of(i);
                }
                spectrum[group][i] = spectrum[group][i] * scale;
            }
        }
        fft.forward(spectrum);
        __syncthreads();  // before the next forward transform
    }
    __device__ __forceinline__ Number number(const Fft& fft, int group, int i, i64 k) const {
        const int j = fft.natural(group, i);
        return fft.active(group) && j < args.n ? right(j, k) : Number{};
    }
    __device__ __forceinline__ void bring(const Fft& fft, typename Fft::Numbers& numbers, i64 k) const {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) numbers[group][i] = number(fft, group, i, k);
    }
    // With what bring() brought, where there are registers to bring it before it is needed.
    static constexpr bool kEarly = kGroups == 1;
    __device__ __forceinline__ void convolve(const Fft& fft, const typename Fft::Numbers& spectrum,
                                             typename Fft::Numbers& numbers, i64 k) const {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const Turns turns(fft, group);
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) {
                if constexpr (!kEarly) numbers[group][i] = number(fft, group, i, k);
                if constexpr (!Io::kComplex) numbers[group][i] = turns.of(i) * numbers[group][i].re;
            }
        }
        fft.forward(numbers);
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) numbers[group][i] = numbers[group][i] * spectrum[group][i];
        fft.inverse(numbers);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const Turns turns(fft, group);
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) {
                const int j = fft.natural(group, i);
                if constexpr (!Io::kComplex) numbers[group][i] = numbers[group][i] * turns.of(i).conjugate();
                if (fft.active(group) && j < args.n) store(j, k, numbers[group][i]);
            }
        }
    }
    __device__ __forceinline__ void run_transforms(Number* exchange, i64 first_column) const {
        const Fft fft{exchange, args.log_transform};
        typename Fft::Numbers spectrum;
        const i64 end = min(first_column + args.columns_per_block, args.columns);
        if constexpr (kEarly) {  // the first right-hand side is under way while the matrix is transformed
            typename Fft::Numbers numbers;
            bring(fft, numbers, first_column);
            transform_diagonals(fft, spectrum);
#pragma unroll 1
            for (i64 k = first_column; k < end; ++k) {
                if (k > first_column) bring(fft, numbers, k);
                convolve(fft, spectrum, numbers, k);
            }
        } else {
            transform_diagonals(fft, spectrum);
#pragma unroll 1
            for (i64 k = first_column; k < end; ++k) {
                typename Fft::Numbers numbers;
                convolve(fft, spectrum, numbers, k);
            }
        }
    }

    // ---- directly

    // Rows from first_row on: window[n - 1 + i - j] is the diagonal of row first_row + i and column j.
    __device__ __forceinline__ void run_directly(Number* window, int first_row, i64 first_column) const {
        constexpr int kWarps = kConfig.threads / 32;
        Number *const vector = window + kMost + kRows, *const sums = vector + kMost;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = (args.n + kWarps - 1) / kWarps;
        // Everything that is read is under way before anything waits for it.
        constexpr int kWindows = (kMost + kRows + kConfig.threads - 1) / kConfig.threads;
        static_assert(kConfig.threads == kMost, "a number of the right-hand side a thread");
        const int j_of_thread = threadIdx.x;
        Number brought[kWindows], next{};
        if (j_of_thread < args.n) next = right(j_of_thread, first_column);
#pragma unroll
        for (int w = 0; w < kWindows; ++w) {
            const int i = j_of_thread + w * kConfig.threads, d = first_row + i - (args.n - 1);
            brought[w] = i < args.n + kRows - 1 && d < args.n ? diagonal(d) : Number{};
        }
#pragma unroll
        for (int w = 0; w < kWindows; ++w)
            if (const int i = j_of_thread + w * kConfig.threads; i < args.n + kRows - 1) window[i] = brought[w];
        const i64 end = min(first_column + args.columns_per_block, args.columns);
#pragma unroll 1
        for (i64 k = first_column; k < end; ++k) {
            if (j_of_thread < args.n) vector[j_of_thread] = next;
            __syncthreads();
            if (k + 1 < end && j_of_thread < args.n) next = right(j_of_thread, k + 1);
            Number sum{};
#pragma unroll 8
            for (int j = warp * share; j < min((warp + 1) * share, args.n); ++j) {
                const Number t = window[args.n - 1 + lane - j], with = vector[j];
                if constexpr (Io::kComplex)
                    sum = sum + t * with;
                else
                    sum.re += t.re * with.re;
            }
            sums[warp * kRows + lane] = sum;
            __syncthreads();
            if (warp == 0 && first_row + lane < args.n) {
                for (int w = 1; w < kWarps; ++w) sum = sum + sums[w * kRows + lane];
                store(first_row + lane, k, sum);
            }
        }
    }
};

template <ToeplitzMatvecConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, 1) toeplitz_matvec(const __grid_constant__ ToeplitzMatvecArgs args) {
    using Kernel = ToeplitzMatvec<kConfig>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto* numbers = reinterpret_cast<typename Kernel::Number*>(memory);
    const unsigned block = blockIdx.x, parts = args.parts;
    const i64 first_column = block % parts * args.columns_per_block;
    if constexpr (kConfig.direct()) {
        const unsigned tiles = (args.n + Kernel::kRows - 1) / Kernel::kRows;
        const Kernel kernel(args, block / parts / tiles);
        kernel.run_directly(numbers, static_cast<int>(block / parts % tiles) * Kernel::kRows, first_column);
    } else {
        Kernel(args, block / parts).run_transforms(numbers, first_column);
    }
}

}  // namespace gdn_cuda::structured
