// structured/toeplitz_pcg: solves T x = b for large symmetric positive definite T, T[i, j] = column[|i - j|], by preconditioned
// conjugate gradients in fp64 whatever the caller has. A block has a right-hand side, and all steps of it are in one launch.
//
// Products are those of polynomials at roots of X^M = e^(i theta), M half as many as the rows a block holds: v folds to M
// numbers v_k + e^(i theta) v_(M + k), turned by e^(i theta k / M) they are cyclic, and a spectrum that is real and even in the
// angle needs one of two conjugate thetas. T is a corner of a skew-circulant matrix of order 4 M, theta = pi/4 and -3 pi/4. The
// preconditioner is a corner of the inverse of one of order 2 M, theta = pi/2, whose eigenvalues are the Fejer mean of T's
// generating function, sum over |d| < n of (1 - |d|/n) t_d e^(i w d) = a^H T a / n with a_j = e^(i w j): positive wherever T
// is.
//
// A thread has the same rows of every vector, so vectors need no barrier: transforms and sums have them.
//
// info: 0; -1 where T shows not to be positive definite, or 60 steps are not enough for one right-hand side, which has no
// solution then; n + 1 as toeplitz_schur.cuh says, the probe being one more right-hand side. Residuals end below 2^-47 |T| |x|
// for fp32, which no regular matrix makes an error of, and 2^-51 |T| |x| for fp64, where rounding decides; the probe's where
// epsilon does not see them. They are formed anew at the end. Matrices and right-hand sides are scaled by powers of two, so
// that squares have range.
//
// Bound: a step is six transforms of 4096 numbers, by count 11 us of fp64 arithmetic and 9 of shared memory, which overlap
// little; on an H200 it takes 24 us, and what is before the first and behind the last 44.
#pragma once

#include <gdn_cuda/kernels/common/fft.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_pcg_plan.cuh>

namespace gdn_cuda::structured {

// The first powers of all passes in shared memory, and the others their squares: there are many transforms.
struct FirstTwiddles {
    ComplexNumber<double>* table;  // a quarter as many numbers as are transformed

    __device__ __forceinline__ static int index(int log, int place) { return (1 << (log - 3)) + place; }
    // By all threads of the block, with a barrier behind it.
    __device__ __forceinline__ void make(int log_size) const {
        for (int log = log_size; log > 3; log -= 3)
            for (int place = static_cast<int>(threadIdx.x); place < 1 << (log - 3); place += static_cast<int>(blockDim.x))
                table[index(log, place)] = unit_at(static_cast<double>(-2 * place) / (1 << log));
    }
    __device__ __forceinline__ TwiddlePowers<double> at(int log, int place) const {
        const ComplexNumber<double> one = table[index(log, place)], two = one * one;
        return {one, two, two * two};
    }
};

template <ToeplitzPcgConfig kConfig>
struct ToeplitzPcg {
    using Io = Numbers<kConfig.io>;
    using Shared = ToeplitzPcgSharedPlan<kConfig>;
    using Number = ComplexNumber<double>;
    using Fft = BlockFft<double, kConfig.threads, kConfig.groups(), FirstTwiddles, true>;
    static constexpr int kPoints = kConfig.transform, kGroups = kConfig.groups(), kSlots = 2 * kFftEach * kGroups;
    static constexpr int kWarps = kConfig.threads / 32, kMostSteps = 60;
    using Slots = double[kSlots];
    using Eigenvalues = double[kGroups][kFftEach];

    const ToeplitzPcgArgs& args;
    Shared& shared;
    Fft fft;
    double* spectra;  // three, and behind them vectors: memory that L2 holds, each thread's read and written by itself

    __device__ __forceinline__ ToeplitzPcg(const ToeplitzPcgArgs& args, Shared& shared)
        : args(args),
          shared(shared),
          fft{reinterpret_cast<Number*>(shared.exchange), log2(kPoints), {reinterpret_cast<Number*>(shared.twiddles)}},
          spectra(args.scratch + static_cast<i64>(blockIdx.x) * kConfig.scratch()) {
        fft.twiddles.make(fft.log_size);
        for (int group = 0; group < kGroups; ++group) {
            const Number root = unit_at(static_cast<double>(Fft::stands_for(group)) / (4 * kPoints));
            shared.roots[Fft::stands_for(group)] = {root.re, root.im};
        }
    }
    __device__ __forceinline__ double* solution() const { return spectra + 3 * kPoints; }
    __device__ __forceinline__ double* residual() const { return solution() + kConfig.rows(); }
    __device__ __forceinline__ double* direction() const { return solution() + 2 * kConfig.rows(); }
    __device__ __forceinline__ static constexpr int log2(int x) { return x == 1 ? 0 : 1 + log2(x / 2); }
    __device__ __forceinline__ static unsigned row_at(int s) { return threadIdx.x + s * kConfig.threads; }
    // Rows of the thread that are the system's.
    struct Rows {
        unsigned first;
        int left;

        // Told which thread it is, the compiler would make rows once for all, and has no registers to keep them.
        __device__ __forceinline__ explicit Rows(int n) : first(threadIdx.x) {
            asm volatile("" : "+r"(first));
            left = n - static_cast<int>(first);
        }
        __device__ __forceinline__ bool has(int s) const { return s * kConfig.threads < left; }
        __device__ __forceinline__ unsigned at(int s) const { return first + s * kConfig.threads; }
        // 0 where there is none. Loads have no branches: all are under way at once.
        __device__ __forceinline__ double load(const Lines& operand, i64 from, int s) const {
            const double x = Io::template load<double>(operand.data, from + (has(s) ? at(s) : 0) * operand.step).re;
            return has(s) ? x : 0;
        }
    };
    __device__ __forceinline__ static void load(const double* from, Slots& to) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) to[s] = from[row_at(s)];
    }
    __device__ __forceinline__ static void store(const Slots& from, double* to) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) to[row_at(s)] = from[s];
    }

    // ---- numbers of the whole block, the same in all threads and at every call

    // Which of the buffers it takes: not the one of the call before.
    enum class By { kFirst, kSecond, kThird };
    template <class Combine>
    __device__ __forceinline__ double over_block(By buffer, double x, const Combine& combine) const {
        return over_block(buffer, x, 0.0, combine).re;
    }
    template <class Combine>
    __device__ __forceinline__ Number over_block(By buffer, double x, double y, const Combine& combine) const {
        const auto over_lanes = [&](double& z, int lanes) {
#pragma unroll
            for (int apart = lanes / 2; apart > 0; apart /= 2) z = combine(z, __shfl_xor_sync(~0u, z, apart));
        };
        auto& sums = shared.sums[static_cast<int>(buffer)];
        over_lanes(x, 32);
        over_lanes(y, 32);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        if (lane == 0) {
            sums[0][warp] = x;
            sums[1][warp] = y;
        }
        __syncthreads();
        x = sums[0][lane % kWarps];
        y = sums[1][lane % kWarps];
        over_lanes(x, kWarps);
        over_lanes(y, kWarps);
        return {x, y};
    }
    __device__ __forceinline__ static double sum_of(double x, double y) { return x + y; }
    __device__ __forceinline__ static double product(const Slots& x, const Slots& y) {
        double sum = 0;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) sum += x[s] * y[s];
        return sum;
    }
    // A power of two that brings x near to 1.
    __device__ __forceinline__ static double scale_of(double x) {
        const int exponent = __double2hiint(x) >> 20 & 0x7ff;
        return __longlong_as_double(static_cast<long long>(max(1, 2046 - max(1, exponent))) << 52);
    }

    // ---- transforms; theta = kQuarters pi / 4

    // e^(i pi j / 32), j known to the compiler.
    __device__ __forceinline__ static Number root(int j) {
        constexpr double kCosine[17] = {1.0,
                                        0.9951847266721969,
                                        0.9807852804032304,
                                        0.9569403357322088,
                                        0.9238795325112867,
                                        0.881921264348355,
                                        0.8314696123025452,
                                        0.773010453362737,
                                        0.7071067811865476,
                                        0.6343932841636455,
                                        0.5555702330196022,
                                        0.47139673682599764,
                                        0.3826834323650898,
                                        0.2902846772544624,
                                        0.19509032201612828,
                                        0.0980171403295606,
                                        0.0};
        j = (j % 64 + 64) % 64;
        const int within = j % 16;
        const Number first = {kCosine[within], kCosine[16 - within]};
        return j / 16 == 0   ? first
               : j / 16 == 1 ? Number{-first.im, first.re}
               : j / 16 == 2 ? Number{-first.re, -first.im}
                             : Number{first.im, -first.re};
    }
    // e^(i theta k / M) for the first k of a group.
    template <int kQuarters>
    __device__ __forceinline__ Number root_of(int group) const {
        const auto& kept = shared.roots[Fft::stands_for(group)];
        const Number one = {kept.re, kept.im};
        if constexpr (kQuarters == 1) return one;
        if constexpr (kQuarters == 2) return one * one;
        if constexpr (kQuarters == -3) return (one * one * one).conjugate();
    }
    // Number i of a group is folded from two rows of the thread, and unfolds to them.
    template <class Do>
    __device__ __forceinline__ static void for_numbers(const Do& run) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) run(group, i, i * kGroups + group, (i + kFftEach) * kGroups + group);
    }
    template <int kQuarters>
    __device__ __forceinline__ void forward(const Slots& from, typename Fft::Numbers& to) const {
        for_numbers([&](int group, int i, int low, int high) {
            const Number lower = root(kQuarters * i), upper = root(kQuarters * (i + kFftEach));
            to[group][i] = Number{from[low] * lower.re + from[high] * upper.re, from[low] * lower.im + from[high] * upper.im} *
                           root_of<kQuarters>(group);
        });
        fft.forward(to);
    }
    // Adds the product with a spectrum. Inverse transforms end where forward ones begin, so no barrier is between them.
    template <int kQuarters>
    __device__ __forceinline__ void convolve(const double* from, const double* spectrum, Slots& to) const {
        typename Fft::Numbers numbers;
        {
            Slots given;
            load(from, given);
            forward<kQuarters>(given, numbers);
        }
        for_numbers([&](int group, int i, int low, int) { numbers[group][i] = numbers[group][i] * spectrum[row_at(low)]; });
        fft.inverse(numbers);
        for_numbers([&](int group, int i, int low, int high) {
            const Number turned = numbers[group][i] * root_of<kQuarters>(group).conjugate(), lower = root(kQuarters * i),
                         upper = root(kQuarters * (i + kFftEach));
            to[low] += turned.re * lower.re + turned.im * lower.im;
            to[high] += turned.re * upper.re + turned.im * upper.im;
        });
    }
    // Of the symmetric matrix with this first column, at the points in the order of forward transforms.
    template <int kQuarters>
    __device__ __forceinline__ void find(const Slots& column, double first, Eigenvalues& to) const {
        typename Fft::Numbers numbers;
        forward<kQuarters>(column, numbers);
        for_numbers([&](int group, int i, int, int) { to[group][i] = 2 * numbers[group][i].re - first; });
        __syncthreads();
    }
    // Those of T, whose column is where residuals will be, and the inverse ones of the mean, with what inverse transforms leave
    // to divide by: false where the mean is not positive.
    __device__ __forceinline__ bool transform_matrix(double first) const {
        Slots column;
        Eigenvalues found;
        const auto keep = [&](int part, double scale) {
            for_numbers(
                [&](int group, int i, int low, int) { spectra[part * kPoints + row_at(low)] = found[group][i] * scale; });
        };
        load(residual(), column);
        find<1>(column, first, found);
        keep(0, 0.5 / kPoints);
        load(residual(), column);
        find<-3>(column, first, found);
        keep(1, 0.5 / kPoints);
        load(residual(), column);
        const double each = 1.0 / args.n;
        const Rows rows(args.n);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) column[s] *= (rows.left - s * kConfig.threads) * each;
        find<2>(column, first, found);
        bool positive = true;
        for_numbers([&](int group, int i, int, int) {
            positive = positive && found[group][i] > 0;
            found[group][i] = 1 / found[group][i];
        });
        keep(2, 1.0 / kPoints);
        return !__syncthreads_or(!positive);
    }
    __device__ __forceinline__ void only_rows(Slots& x) const {
        const Rows rows(args.n);
#pragma unroll
        for (int s = 0; s < kSlots; ++s)
            if (!rows.has(s)) x[s] = 0;
    }
    __device__ __forceinline__ void apply_matrix(const double* from, Slots& to) const {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) to[s] = 0;
        convolve<1>(from, spectra, to);
        convolve<-3>(from, spectra + kPoints, to);
        only_rows(to);
    }
    __device__ __forceinline__ void apply_preconditioner(const double* from, Slots& to) const {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) to[s] = 0;
        convolve<2>(from, spectra + 2 * kPoints, to);
        only_rows(to);
    }

    // ---- one right-hand side

    // The probe is behind the last right-hand side of its system.
    __device__ __forceinline__ unsigned lines() const { return static_cast<unsigned>(args.columns) + 1; }
    __device__ __forceinline__ unsigned system_at(unsigned line) const { return line / lines(); }
    __device__ __forceinline__ unsigned column_at(unsigned line) const { return line % lines(); }
    __device__ __forceinline__ bool is_probe(unsigned line) const { return column_at(line) == args.columns; }
    __device__ __forceinline__ void bring(unsigned line, double scale, Slots& to) const {
        const Rows rows(args.n);
        if (is_probe(line)) {
#pragma unroll
            for (int s = 0; s < kSlots; ++s) to[s] = rows.has(s) ? probe_at(static_cast<int>(rows.at(s))) : 0;
        } else {
            const i64 right = line_of(args, args.right, system_at(line)) + column_at(line) * args.right_column_stride;
#pragma unroll
            for (int s = 0; s < kSlots; ++s) to[s] = scale * rows.load(args.right, right, s);
        }
    }
    __device__ __forceinline__ static double largest_of(const Slots& x) {
        double largest = 0;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) largest = larger(largest, fabs(x[s]));
        return largest;
    }
    // Of squared norms, the residual's and the solution's.
    __device__ __forceinline__ bool small(const Number& squares, double slack) const {
        return squares.re <= slack * shared.line.allowed * squares.im;
    }
    // Of |x|^2, |T| as its column has it at most.
    __device__ __forceinline__ double allowed(unsigned line, double column_size) const {
        constexpr double kOfType = kConfig.io == DType::f32 ? 0x1p-47 : 0x1p-51;
        const double size = (is_probe(line) ? larger(kOfType, args.epsilon / 8) : kOfType) * 2 * column_size;
        return size * size;
    }

    // T x = b for b in residual and 0 in solution; whether it was solved. All threads alike.
    __device__ __forceinline__ bool iterate(unsigned line) {
        double energy = 0;
        bool ends = false;  // the residual seems to be small: now it is formed anew
#pragma unroll 1
        for (int step = 0;; ++step) {
            Slots image, along;
            if (!ends) {
                if (step == kMostSteps) return false;
                apply_preconditioner(residual(), image);
                load(residual(), along);
                const double before = energy;
                energy = over_block(By::kFirst, product(image, along), sum_of);
                if (!(energy > 0)) return false;
                if (step > 0) {
                    load(direction(), along);
                    const double ratio = energy / before;
#pragma unroll
                    for (int s = 0; s < kSlots; ++s) image[s] += ratio * along[s];
                }
                store(image, direction());
            }
            apply_matrix(ends ? solution() : direction(), image);
            Number squares{};
            if (ends) {
                Slots right;
                bring(line, shared.line.right_scale, right);
                load(solution(), along);
#pragma unroll
                for (int s = 0; s < kSlots; ++s) right[s] -= image[s];
                return small(over_block(By::kFirst, product(right, right), product(along, along), sum_of), 4);
            }
            load(direction(), along);
            const double curvature = over_block(By::kSecond, product(image, along), sum_of);
            if (!(curvature > 0)) return false;
            const double length = energy / curvature;
#pragma unroll
            for (int s = 0; s < kSlots; ++s) {
                const unsigned i = row_at(s);
                const double rest = residual()[i] - length * image[s], x = solution()[i] + length * along[s];
                residual()[i] = rest;
                solution()[i] = x;
                squares.re += rest * rest;
                squares.im += x * x;
            }
            ends = small(over_block(By::kThird, squares.re, squares.im, sum_of), 1);
        }
    }
    __device__ __forceinline__ void tell(unsigned system, bool solved, double condition) const {
        if (threadIdx.x > 0) return;
        int* info = static_cast<int*>(args.info) + system;
        if (!solved)
            atomicExch(info, -1);
        else if (!(condition * args.epsilon <= 1))  // true for what is no number
            atomicCAS(info, 0, args.n + 1);
    }
    struct Begun {
        bool positive, iterates;  // whether T may be positive definite, and there is something to iterate for
    };
    // Spectra, residual and solution to begin with, and what is to be known later.
    __device__ __forceinline__ Begun begin(unsigned line) {
        const i64 column = line_of(args, args.column, system_at(line));
        const double first = Io::template load<double>(args.column.data, column).re, matrix_scale = scale_of(first);
        const Rows rows(args.n);
        Slots numbers;
        double column_size = 0;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            numbers[s] = matrix_scale * rows.load(args.column, column, s);
            column_size += fabs(numbers[s]);
        }
        column_size = over_block(By::kFirst, column_size, sum_of);
        store(numbers, residual());
        const bool positive = first > 0 && transform_matrix(matrix_scale * first);

        bring(line, 1, numbers);
        const double largest = over_block(By::kSecond, largest_of(numbers), larger);
        // Right-hand sides that are no numbers have solutions that are none, and tell nothing of the matrix.
        const bool finite = largest - largest == 0;
        const double right_scale = is_probe(line) || !(largest > 0) ? 1 : scale_of(largest);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            residual()[row_at(s)] = right_scale * numbers[s];
            solution()[row_at(s)] = 0;
        }
        if (threadIdx.x == 0)
            shared.line = {.column_size = column_size,
                           .right_scale = right_scale,
                           .solution_scale = finite ? matrix_scale / right_scale : __longlong_as_double(-1),
                           .allowed = allowed(line, column_size)};
        __syncthreads();
        return {positive, positive && finite && largest > 0};
    }
    __device__ __forceinline__ void run(unsigned line) {
        const Begun begun = begin(line);
        const bool solved = begun.iterates ? iterate(line) : begun.positive;
        Slots numbers;
        load(solution(), numbers);
        if (is_probe(line)) {
            tell(system_at(line), solved,
                 solved ? shared.line.column_size * over_block(By::kThird, largest_of(numbers), larger) : 0);
            return;
        }
        tell(system_at(line), solved, 0);
        const double scale = solved ? shared.line.solution_scale : __longlong_as_double(-1);
        const Rows rows(args.n);
#pragma unroll
        for (int s = 0; s < kSlots; ++s)
            if (rows.has(s))
                Io::store(args.out, (static_cast<i64>(system_at(line)) * args.n + rows.at(s)) * args.columns + column_at(line),
                          {static_cast<typename Io::Real>(numbers[s] * scale), 0});
    }
};

template <ToeplitzPcgConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, 1) toeplitz_pcg(const __grid_constant__ ToeplitzPcgArgs args) {
    __builtin_assume(threadIdx.x < kConfig.threads);  // or every pass of a transform asks
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ToeplitzPcgSharedPlan<kConfig>*>(memory);
    ToeplitzPcg<kConfig> kernel(args, shared);
    const unsigned all = static_cast<unsigned>(args.rows) * kernel.lines();
#pragma unroll 1
    for (unsigned line = blockIdx.x; line < all; line += gridDim.x) {
        __syncthreads();
        kernel.run(line);
    }
}

}  // namespace gdn_cuda::structured
