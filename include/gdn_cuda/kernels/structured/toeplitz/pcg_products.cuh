// Products with T and with its preconditioner for structured/toeplitz_pcg, by transforms over the whole block.
//
// They are products of polynomials at the roots of X^M = e^(i theta), with M half the number of rows that a block holds. v
// folds to M values v_k + e^(i theta) v_(M + k), factors e^(i theta k / M) make the product cyclic, and a spectrum that is real
// and even in the angle needs only one of two conjugate thetas. T is a corner of a skew-circulant matrix of order 4 M, theta =
// pi/4 and -3 pi/4. The preconditioner is a corner of the inverse of one of order 2 M, theta = pi/2, whose eigenvalues are the
// Fejer mean of T's generating function, sum over |d| < n of (1 - |d|/n) t_d e^(i w d) = a^H T a / n with a_j = e^(i w j):
// positive wherever T is.
//
// A thread holds the same rows of every vector, so only transforms need barriers.
#pragma once

#include <gdn_cuda/kernels/common/fft.cuh>
#include <gdn_cuda/kernels/structured/common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/pcg_plan.cuh>

namespace gdn_cuda::structured {

// Twiddles for many transforms: first powers of all passes in shared memory, second and fourth powers by squaring.
struct FirstTwiddles {
    ComplexNumber<double>* table;  // a quarter of the transform's length

    __device__ __forceinline__ static int index(int log, int place) { return (1 << (log - 3)) + place; }
    // Called by the whole block; a barrier must follow.
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
struct ToeplitzPcgProducts {
    using Io = ElementType<kConfig.io>;
    using Shared = ToeplitzPcgSharedPlan<kConfig>;
    using Number = ComplexNumber<double>;
    using Fft = BlockFft<double, kConfig.threads, kConfig.groups(), FirstTwiddles, true>;
    static constexpr int kPoints = kConfig.transform, kGroups = kConfig.groups(), kSlots = 2 * kFftEach * kGroups;
    using Slots = double[kSlots];
    using Eigenvalues = double[kGroups][kFftEach];

    const ToeplitzPcgArgs& args;
    Shared& shared;
    Fft fft;
    double* spectra;  // three spectra, then the vectors: scratch in L2; a thread accesses only its own elements

    __device__ __forceinline__ ToeplitzPcgProducts(const ToeplitzPcgArgs& args, Shared& shared)
        : args(args),
          shared(shared),
          fft{reinterpret_cast<Number*>(shared.exchange), log2(kPoints), {reinterpret_cast<Number*>(shared.twiddles)}},
          spectra(args.scratch + static_cast<i64>(blockIdx.x) * kConfig.scratch()) {
        fft.twiddles.make(fft.log_size);
        for (int group = 0; group < kGroups; ++group) {
            const Number root = unit_at(static_cast<double>(Fft::butterfly(group)) / (4 * kPoints));
            shared.roots[Fft::butterfly(group)] = {root.re, root.im};
        }
    }
    __device__ __forceinline__ double* solution() const { return spectra + 3 * kPoints; }
    __device__ __forceinline__ double* residual() const { return solution() + kConfig.rows(); }
    __device__ __forceinline__ double* direction() const { return solution() + 2 * kConfig.rows(); }
    __device__ __forceinline__ static constexpr int log2(int x) { return x == 1 ? 0 : 1 + log2(x / 2); }
    __device__ __forceinline__ static unsigned row_at(int s) { return threadIdx.x + s * kConfig.threads; }
    // The thread's rows of the system.
    struct Rows {
        unsigned first;
        int left;

        // Hides threadIdx from the compiler, which would otherwise compute all rows in advance and lacks registers to hold
        // them.
        __device__ __forceinline__ explicit Rows(int n) : first(threadIdx.x) {
            asm volatile("" : "+r"(first));
            left = n - static_cast<int>(first);
        }
        __device__ __forceinline__ bool has(int s) const { return s * kConfig.threads < left; }
        __device__ __forceinline__ unsigned at(int s) const { return first + s * kConfig.threads; }
        // 0 past the last row. The loads are branch-free, so all are in flight at once.
        __device__ __forceinline__ double load(const BroadcastOperand& operand, i64 from, int s) const {
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

    // ---- transforms; theta = kQuarters pi / 4

    // e^(i pi j / 32) for j known at compile time.
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
        const auto& kept = shared.roots[Fft::butterfly(group)];
        const Number one = {kept.re, kept.im};
        if constexpr (kQuarters == 1) return one;
        if constexpr (kQuarters == 2) return one * one;
        if constexpr (kQuarters == -3) return (one * one * one).conjugate();
    }
    // Calls run(group, i, low, high): value i of a group folds from rows `low` and `high` of the thread, and unfolds to them.
    template <class Do>
    __device__ __forceinline__ static void for_values(const Do& run) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) run(group, i, i * kGroups + group, (i + kFftEach) * kGroups + group);
    }
    template <int kQuarters>
    __device__ __forceinline__ void forward(const Slots& from, typename Fft::Values& to) const {
        for_values([&](int group, int i, int low, int high) {
            const Number lower = root(kQuarters * i), upper = root(kQuarters * (i + kFftEach));
            to[group][i] = Number{from[low] * lower.re + from[high] * upper.re, from[low] * lower.im + from[high] * upper.im} *
                           root_of<kQuarters>(group);
        });
        fft.forward(to);
    }
    // Adds the product with a spectrum. Inverse transforms end where forward ones begin, so no barrier is needed between them.
    template <int kQuarters>
    __device__ __forceinline__ void convolve(const double* from, const double* spectrum, Slots& to) const {
        typename Fft::Values values;
        {
            Slots input;
            load(from, input);
            forward<kQuarters>(input, values);
        }
        for_values([&](int group, int i, int low, int) { values[group][i] = values[group][i] * spectrum[row_at(low)]; });
        fft.inverse(values);
        for_values([&](int group, int i, int low, int high) {
            const Number turned = values[group][i] * root_of<kQuarters>(group).conjugate(), lower = root(kQuarters * i),
                         upper = root(kQuarters * (i + kFftEach));
            to[low] += turned.re * lower.re + turned.im * lower.im;
            to[high] += turned.re * upper.re + turned.im * upper.im;
        });
    }
    // Eigenvalues of the symmetric matrix with first column `column`, in the order of forward transforms.
    template <int kQuarters>
    __device__ __forceinline__ void find_eigenvalues(const Slots& column, double first, Eigenvalues& to) const {
        typename Fft::Values values;
        forward<kQuarters>(column, values);
        for_values([&](int group, int i, int, int) { to[group][i] = 2 * values[group][i].re - first; });
        __syncthreads();
    }
    // Stores the eigenvalues of T, whose column is in residual(), and the mean's reciprocal ones, both scaled for the
    // unnormalized inverse transforms. Returns false if the mean is not positive.
    __device__ __forceinline__ bool transform_matrix(double first) const {
        Slots column;
        Eigenvalues found;
        const auto keep = [&](int part, double scale) {
            for_values(
                [&](int group, int i, int low, int) { spectra[part * kPoints + row_at(low)] = found[group][i] * scale; });
        };
        load(residual(), column);
        find_eigenvalues<1>(column, first, found);
        keep(0, 0.5 / kPoints);
        load(residual(), column);
        find_eigenvalues<-3>(column, first, found);
        keep(1, 0.5 / kPoints);
        load(residual(), column);
        const double each = 1.0 / args.n;
        const Rows rows(args.n);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) column[s] *= (rows.left - s * kConfig.threads) * each;
        find_eigenvalues<2>(column, first, found);
        bool positive = true;
        for_values([&](int group, int i, int, int) {
            positive = positive && found[group][i] > 0;
            found[group][i] = 1 / found[group][i];
        });
        keep(2, 1.0 / kPoints);
        return !__syncthreads_or(!positive);
    }
    __device__ __forceinline__ void clear_padding(Slots& x) const {
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
        clear_padding(to);
    }
    __device__ __forceinline__ void apply_preconditioner(const double* from, Slots& to) const {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) to[s] = 0;
        convolve<2>(from, spectra + 2 * kPoints, to);
        clear_padding(to);
    }
};

}  // namespace gdn_cuda::structured
