// Input of the transforms in structured/toeplitz_gko and structured/toeplitz_generators: terms of T's generators and of the
// right-hand sides, and the magnitude of T.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/common.cuh>

namespace gdn_cuda::structured {

template <DType kIo, int kColumns>
struct ToeplitzTerms {
    using Io = ElementType<kIo>;
    using Number = ComplexNumber<double>;

    // Magnitude of x; for complex x the larger of |re| and |im|.
    __device__ __forceinline__ static double magnitude(const Number& x) {
        return Io::kComplex ? max_or_nan(fabs(x.re), fabs(x.im)) : fabs(x.re);
    }
    // A power of two that scales values up to `largest` to at most about 1.
    __device__ __forceinline__ static double scale_for(double largest) {
        const bool known = largest > 0 && largest - largest == 0;
        return known ? scalbn(1.0, max(-1000, min(1000, -ilogb(largest)))) : 1.0;
    }
    // Magnitudes of T: first over a thread's terms, then over the block.
    struct Size {
        double column_sum = 0, row_sum = 0, largest = 0;

        template <int kWarps>
        __device__ __forceinline__ void over_block(double (&reduced)[3][kWarps]) {
            const auto sum = [](double x, double y) { return x + y; };
            largest = block_reduce(largest, reduced[0], [](double x, double y) { return max_or_nan(x, y); });
            column_sum = block_reduce(column_sum, reduced[1], sum);
            row_sum = block_reduce(row_sum, reduced[2], sum);
        }
        // Power of two by which T is multiplied, to keep squares of pivots in range.
        __device__ __forceinline__ double scale() const { return scale_for(largest); }
        __device__ __forceinline__ double scaled_norm() const { return max_or_nan(column_sum * scale(), row_sum * scale()); }
    };
    struct Rights {
        const BroadcastOperand& vectors;
        i64 column_stride, first_column;
        double scale;  // applied to T and right-hand sides before they are summed
    };
    // fp64 sums could overflow or underflow where their terms do not. Called by the whole block.
    template <class Args, int kWarps>
    __device__ __forceinline__ static double scale_before_sums(const Args& args, unsigned system, double (&reduced)[kWarps]) {
        if constexpr (!Io::kWide) return 1.0;
        double largest = 0;
#pragma unroll 1
        for (int j = threadIdx.x; j < args.n; j += 32 * kWarps) {
            largest = max_or_nan(
                largest, magnitude(number_at(args.column, row_offset(args, args.column, system) + j * args.column.step)));
            if (j > 0)
                largest =
                    max_or_nan(largest, magnitude(number_at(args.row, row_offset(args, args.row, system) + j * args.row.step)));
        }
        largest = block_reduce(largest, reduced, [](double x, double y) { return max_or_nan(x, y); });
        __syncthreads();  // before `reduced` is reused
        return scale_for(largest);
    }
    __device__ __forceinline__ static Number number_at(const BroadcastOperand& from, i64 at) {
        const auto x = Io::template load<double>(from.data, at);
        return {x.re, x.im};
    }

    // Loads term j; the probe follows the last right-hand side.
    template <class Args, class Term>
    __device__ __forceinline__ static void load_term(Term& to, const Args& args, const Rights& rights, unsigned system, int j,
                                                     Size& size) {
        using Stored = decltype(to.left);
        const int n = args.n;
        const i64 column = row_offset(args, args.column, system), row = row_offset(args, args.row, system);
        const auto load = [&](const BroadcastOperand& from, i64 at) {
            const Number x = number_at(from, at);
            return Io::kWide ? x * rights.scale : x;
        };
        const auto below = [&](int i) { return load(args.column, column + i * args.column.step); };
        const auto above = [&](int i) { return load(args.row, row + i * args.row.step); };
        const Number first = below(j), along = j == 0 ? first : above(j);
        size.column_sum += magnitude(first);
        size.row_sum += magnitude(along);
        size.largest = max_or_nan(size.largest, max_or_nan(magnitude(first), magnitude(along)));
        const Number left = j == 0 ? first : first + above(n - j);
        const Number back = j == n - 1 ? below(0) : below(n - 1 - j) - above(j + 1),
                     right = back * unit_at(static_cast<double>(j) / n);
        to.left = Stored{left.re, left.im};
        to.right = Stored{right.re, right.im};
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            const i64 which = rights.first_column + c,
                      at = row_offset(args, rights.vectors, system) + j * rights.vectors.step + which * rights.column_stride;
            Number x{which == args.columns ? probe_at(j) : 0.0, 0.0};
            if (which < args.columns) x = load(rights.vectors, at);
            to.rhs[c] = Stored{x.re, x.im};
        }
    }
};

}  // namespace gdn_cuda::structured
