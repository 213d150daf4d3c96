// Loads of structured/toeplitz_matvec and structured/toeplitz_sums.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/structured/common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/matvec_plan.cuh>

namespace gdn_cuda::structured {

template <bool kComplex, class Real>
struct ElementOf {
    using type = Real;
};
template <class Real>
struct ElementOf<true, Real> {
    using type = ComplexNumber<Real>;
};

// One system's operands, from right-hand side `first` on.
template <DType kIo>
struct ToeplitzOperands {
    static constexpr bool kComplex = is_complex(kIo);
    using Real = typename ElementType<kIo>::Real;
    using Number = typename ElementOf<kComplex, Real>::type;

    const ToeplitzMatvecArgs& args;
    const Number *below, *above, *x;
    Number* out;

    __device__ __forceinline__ ToeplitzOperands(const ToeplitzMatvecArgs& args, unsigned system, i64 first) : args(args) {
        out = static_cast<Number*>(args.out) + static_cast<i64>(system) * args.n * args.columns + first;
        i64 at_below = 0, at_above = 0, at_x = first * args.x_column_stride;
#pragma unroll 1
        for (int d = args.inner_count - 1; d >= 0; --d) {  // 32-bit system indices: a 64-bit division is a function call
            const auto& inner = args.inner[d];
            const auto size = static_cast<unsigned>(inner.size), place = system % size;
            at_below += place * inner.below;
            at_above += place * inner.above;
            at_x += place * inner.x;
            system /= size;
        }
        below = static_cast<const Number*>(args.below.data) + at_below + system * args.below.stride;
        above = static_cast<const Number*>(args.above.data) + at_above + system * args.above.stride;
        x = static_cast<const Number*>(args.x.data) + at_x + system * args.x.stride;
    }

    // The loads are branch-free and multiply strides once per thread, not per element, so that all of them are soon in flight.

    // Loads diagonals d = i - j = first, first + hop, ...; 0 outside the matrix.
    template <int kCount>
    __device__ __forceinline__ void load_diagonals(Number (&to)[kCount], int first, int hop) const {
        const Number *lower = below + first * args.below.step, *upper = above - first * args.above.step;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const int d = first + i * hop;
            const Number* const at = d >= args.first_below ? lower : upper;
            to[i] = Number{};
            if (d < args.n && d > -args.n) to[i] = *at;
            lower += hop * args.below.step;
            upper -= hop * args.above.step;
        }
    }
    // Loads elements first, first + hop, ... of a right-hand side; 0 past its end.
    template <int kCount>
    __device__ __forceinline__ void load_right(Number (&to)[kCount], int first, int hop, int k) const {
        const Number* at = x + first * args.x.step + k * args.x_column_stride;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            to[i] = Number{};
            if (first + i * hop < args.n) to[i] = *at;
            at += hop * args.x.step;
        }
    }
    __device__ __forceinline__ Number* result(int i, int k) const { return out + i * args.columns + k; }
};

// Number of a block's right-hand sides: args.columns_per_block, or fewer in the last block.
__device__ __forceinline__ int columns_of(const ToeplitzMatvecArgs& args, i64 first) {
    return static_cast<int>(min(args.columns_per_block, args.columns - first));
}

}  // namespace gdn_cuda::structured
