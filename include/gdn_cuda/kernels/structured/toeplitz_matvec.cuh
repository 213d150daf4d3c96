// structured/toeplitz_matvec: T x or T^t x, T[i, j] = column[i - j] on and below the diagonal, row[j - i] above, by Fourier
// transforms in shared memory. structured/toeplitz_sums computes the same by direct sums.
//
// Complex dtypes: T is a corner of a circulant matrix of order N = 2^a >= 2 n. Real dtypes: T is a corner of a skew-circulant
// matrix of order 2 M, M = 2^a >= n. Its products are products of polynomials modulo X^(2 M) + 1 = (X^M - i)(X^M + i), of which
// one factor suffices. So a transform has M complex values x_j + i x_(M + j), each rotated by e^(i pi j / 2 M), which makes
// X^M - i cyclic. x has no upper half, and the real part of the product is the result.
//
// The transform of T stays in registers for all right-hand sides of a block, in the order in which the transform leaves it;
// where registers allow, the first right-hand side is transformed together with T.
//
// Bound: for one right-hand side, latency: loading T and x, two transforms of up to 5 passes with a barrier each, storing the
// result. 64 systems of 1024 take 8200 cycles on an H200: a third is the wait for T and x, a third the two forward transforms,
// which run together. For many right-hand sides: shared memory.
#pragma once

#include <gdn_cuda/kernels/common/fft.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/matvec_common.cuh>

namespace gdn_cuda::structured {

template <ToeplitzMatvecConfig kConfig>
struct ToeplitzMatvec {
    using Operands = ToeplitzOperands<kConfig.io>;
    using Real = typename Operands::Real;
    using Number = ComplexNumber<Real>;
    static constexpr bool kComplex = Operands::kComplex;
    static constexpr int kGroups = kConfig.groups();
    static constexpr bool kTogether = kConfig.together();
    using Twiddles = KeptTwiddles<Real, kTogether>;
    using Fft = BlockFft<Real, kConfig.threads, kGroups, Twiddles>;
    using Group = typename Fft::Group;

    const Operands& operands;
    const Fft fft;
    int n;

    // e^(i pi j / 2 M) for the values of a group: the first from its angle, the others by multiplication with constants.
    struct Rotations {
        Number first;
        Rotations() = default;
        __device__ __forceinline__ Rotations(const Fft& fft, int group)
            : first(unit_at(static_cast<Real>(Fft::butterfly(group)) * half_to_the<Real>(fft.log_size + 1))) {}
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

    __device__ __forceinline__ int hop() const { return fft.size() / kFftEach; }  // distance of a thread's values
    // Loads T: the lower half from the diagonal down, the upper half (the imaginary part for real dtypes) from the corner down.
    __device__ __forceinline__ void load_diagonals(int group, Group& spectrum) const {
        const int first = fft.natural(group, 0);
        typename Operands::Number upper[kFftEach], lower[kFftEach];
        operands.load_diagonals(lower, first, hop());
        operands.load_diagonals(upper, first - fft.size(), hop());
#pragma unroll
        for (int i = 0; i < kFftEach; ++i)
            if constexpr (kComplex)
                spectrum[i] = lower[i] + upper[i];  // one of them is 0: N >= 2 n
            else
                spectrum[i] = {lower[i], -upper[i]};
    }
    __device__ __forceinline__ void load_x(int group, Group& values, int k) const {
        typename Operands::Number x[kFftEach];
        operands.load_right(x, fft.natural(group, 0), hop(), k);
#pragma unroll
        for (int i = 0; i < kFftEach; ++i)
            if constexpr (kComplex)
                values[i] = x[i];
            else
                values[i] = {x[i], Real{}};
    }
    __device__ __forceinline__ static void rotate(const Rotations& rotations, Group& values) {
#pragma unroll
        for (int i = 0; i < kFftEach; ++i) values[i] = values[i] * rotations.of(i);
    }
    __device__ __forceinline__ void store(const Rotations& rotations, int group, const Group& values, int k) const {
        const int first = fft.natural(group, 0);
        auto* const to = operands.result(first, k);
        const i64 step = hop() * operands.args.columns;
#pragma unroll
        for (int i = 0; i < kFftEach; ++i) {
            if (first + i * hop() >= n) continue;
            if constexpr (kComplex)
                to[i * step] = values[i];
            else
                to[i * step] = (values[i] * rotations.of(i).conjugate()).re;
        }
    }

    __device__ __forceinline__ void run(int count) const {
        typename Fft::Values spectrum, values;
        Rotations kept;
        if constexpr (kTogether && !kComplex) kept = Rotations(fft, 0);
        const auto rotations_of = [&](int group) {
            if constexpr (kComplex) return Rotations{};
            return kTogether ? kept : Rotations(fft, group);
        };
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            load_diagonals(group, spectrum[group]);
            if constexpr (kTogether) load_x(group, values[group], 0);
            if (group == 0) fft.twiddles.make();
            const Real scale = half_to_the<Real>(fft.log_size);
            const Rotations rotations = rotations_of(group);
            if constexpr (!kComplex) rotate(rotations, spectrum[group]);
#pragma unroll
            for (int i = 0; i < kFftEach; ++i) spectrum[group][i] = spectrum[group][i] * scale;
            if constexpr (kTogether && !kComplex) rotate(rotations, values[group]);
        }
        if constexpr (kTogether) {
            fft.forward(spectrum, values);
        } else {
            fft.forward(spectrum);
            __syncthreads();  // before the next forward transform
        }
#pragma unroll 1
        for (int k = 0; k < count; ++k) {
            if (!kTogether || k > 0) {
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    load_x(group, values[group], k);
                    if constexpr (!kComplex) rotate(rotations_of(group), values[group]);
                }
                fft.forward(values);
            }
#pragma unroll
            for (int group = 0; group < kGroups; ++group)
#pragma unroll
                for (int i = 0; i < kFftEach; ++i) values[group][i] = values[group][i] * spectrum[group][i];
            fft.inverse(values);
#pragma unroll
            for (int group = 0; group < kGroups; ++group) store(rotations_of(group), group, values[group], k);
        }
    }
};

template <ToeplitzMatvecConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, 1) toeplitz_matvec(const __grid_constant__ ToeplitzMatvecArgs args) {
    using Kernel = ToeplitzMatvec<kConfig>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ToeplitzMatvecSharedPlan<kConfig>*>(memory);
    const i64 first = blockIdx.y * args.columns_per_block;
    const typename Kernel::Operands operands(args, blockIdx.x, first);
    const typename Kernel::Twiddles twiddles{reinterpret_cast<TwiddlePowers<typename Kernel::Real>*>(shared.twiddles),
                                             args.log_transform - (Kernel::kTogether ? 0 : 3)};
    const Kernel kernel{
        operands, {reinterpret_cast<typename Kernel::Number*>(shared.exchange), args.log_transform, twiddles}, args.n};
    kernel.run(columns_of(args, first));
}

}  // namespace gdn_cuda::structured
