// structured/toeplitz_pcg: solves T x = b for large symmetric positive definite T, T[i, j] = column[|i - j|], by preconditioned
// conjugate gradients in fp64 for every dtype. A block computes one right-hand side at a time, with all steps in one launch.
//
// A step has a product with T and one with the preconditioner (toeplitz/pcg_products.cuh). A thread holds the same rows of
// every vector, so only transforms and reductions need barriers.
//
// info: 0; -1 if T is found not positive definite or singular in fp64, or if 60 steps do not suffice for a right-hand side,
// whose solution is then NaN; n + 1 as in toeplitz_schur.cuh, the probe being an additional right-hand side. Final residuals
// are below 2^-47 |T| |x| for fp32, invisible in the solution of any regular matrix, and below 2^-51 |T| |x| for fp64, where
// rounding dominates; the probe's residual is small enough for epsilon. Residuals are recomputed at the end. Matrices and
// right-hand sides are scaled by powers of two, to keep squares in range.
//
// Bound: a step has six transforms of 4096 values, by count 11 us of fp64 arithmetic and 9 us of shared memory accesses, which
// overlap little. On an H200 a step takes 24 us, and the work before the first and after the last step 44 us.
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/pcg_products.cuh>

namespace gdn_cuda::structured {

template <ToeplitzPcgConfig kConfig>
struct ToeplitzPcg : ToeplitzPcgProducts<kConfig> {
    using Products = ToeplitzPcgProducts<kConfig>;
    using Products::apply_matrix, Products::apply_preconditioner, Products::transform_matrix;
    using Products::args, Products::shared, Products::kSlots;
    using Products::load, Products::store, Products::row_at;
    using Products::solution, Products::residual, Products::direction;
    using typename Products::Io, typename Products::Number, typename Products::Rows, typename Products::Slots;
    static constexpr int kWarps = kConfig.threads / 32, kMostSteps = 60;

    using Products::Products;

    // ---- reductions over the block; the result is the same in all threads and at every call

    // Shared buffer of a reduction: consecutive calls use different ones.
    enum class Buffer { kFirst, kSecond, kThird };
    template <class Combine>
    __device__ __forceinline__ double over_block(Buffer buffer, double x, const Combine& combine) const {
        return over_block(buffer, x, 0.0, combine).re;
    }
    template <class Combine>
    __device__ __forceinline__ Number over_block(Buffer buffer, double x, double y, const Combine& combine) const {
        const auto over_lanes = [&](double& z, int lanes) {
#pragma unroll
            for (int distance = lanes / 2; distance > 0; distance /= 2) z = combine(z, __shfl_xor_sync(~0u, z, distance));
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
    // A power of two that scales x to near 1.
    __device__ __forceinline__ static double scale_of(double x) {
        const int exponent = __double2hiint(x) >> 20 & 0x7ff;
        return __longlong_as_double(static_cast<long long>(max(1, 2046 - max(1, exponent))) << 52);
    }

    // ---- one right-hand side

    // The probe follows the last right-hand side of its system.
    __device__ __forceinline__ unsigned rhs_per_system() const { return static_cast<unsigned>(args.columns) + 1; }
    __device__ __forceinline__ unsigned system_at(unsigned rhs) const { return rhs / rhs_per_system(); }
    __device__ __forceinline__ unsigned column_at(unsigned rhs) const { return rhs % rhs_per_system(); }
    __device__ __forceinline__ bool is_probe(unsigned rhs) const { return column_at(rhs) == args.columns; }
    __device__ __forceinline__ void load_right(unsigned rhs, double scale, Slots& to) const {
        const Rows rows(args.n);
        if (is_probe(rhs)) {
#pragma unroll
            for (int s = 0; s < kSlots; ++s) to[s] = rows.has(s) ? probe_at(static_cast<int>(rows.at(s))) : 0;
        } else {
            const i64 right = row_offset(args, args.right, system_at(rhs)) + column_at(rhs) * args.right_column_stride;
#pragma unroll
            for (int s = 0; s < kSlots; ++s) to[s] = scale * rows.load(args.right, right, s);
        }
    }
    __device__ __forceinline__ static double largest_of(const Slots& x) {
        double largest = 0;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) largest = max_or_nan(largest, fabs(x[s]));
        return largest;
    }
    // Convergence test on the squared norms of residual (re) and solution (im).
    __device__ __forceinline__ bool converged(const Number& squares, double slack) const {
        return squares.re <= slack * shared.rhs.allowed * squares.im;
    }
    static constexpr double kResidual = kConfig.io == DType::f32 ? 0x1p-47 : 0x1p-51;
    // Square of `times` |T|, with 2 column_size as a bound of |T|.
    __device__ __forceinline__ static double square_of_matrix(double times, double column_size) {
        const double size = times * 2 * column_size;
        return size * size;
    }
    // Allowed squared residual per |x|^2.
    __device__ __forceinline__ double allowed(unsigned rhs, double column_size) const {
        return square_of_matrix(is_probe(rhs) ? max_or_nan(kResidual, args.epsilon / 8) : kResidual, column_size);
    }
    // If T is singular in fp64, rounding may give a solution so large that even a residual of the right-hand side's size passes
    // the test.
    __device__ __forceinline__ bool is_singular(double solution_square) const {
        const double right_square = 4.0 * args.n;  // an upper bound: scaled values are below 2
        return !(square_of_matrix(kResidual, shared.rhs.column_size) * solution_square < right_square);
    }

    // Solves T x = b for b in residual and 0 in solution; false if it does not converge. Uniform over the block.
    __device__ __forceinline__ bool iterate(unsigned rhs) {
        double energy = 0;
        bool ends = false;  // the updated residual has converged and is now recomputed
#pragma unroll 1
        for (int step = 0;; ++step) {
            Slots image, along;
            if (!ends) {
                if (step == kMostSteps) return false;
                apply_preconditioner(residual(), image);
                load(residual(), along);
                const double before = energy;
                energy = over_block(Buffer::kFirst, product(image, along), sum_of);
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
                load_right(rhs, shared.rhs.right_scale, right);
                load(solution(), along);
#pragma unroll
                for (int s = 0; s < kSlots; ++s) right[s] -= image[s];
                squares = over_block(Buffer::kFirst, product(right, right), product(along, along), sum_of);
                return converged(squares, 4) && !is_singular(squares.im);
            }
            load(direction(), along);
            const double curvature = over_block(Buffer::kSecond, product(image, along), sum_of);
            if (!(curvature > 0)) return false;
            const double length = energy / curvature;
#pragma unroll
            for (int s = 0; s < kSlots; ++s) {
                const unsigned i = row_at(s);
                const double next_residual = residual()[i] - length * image[s], x = solution()[i] + length * along[s];
                residual()[i] = next_residual;
                solution()[i] = x;
                squares.re += next_residual * next_residual;
                squares.im += x * x;
            }
            ends = converged(over_block(Buffer::kThird, squares.re, squares.im, sum_of), 1);
        }
    }
    __device__ __forceinline__ void write_info(unsigned system, bool solved, double condition) const {
        if (threadIdx.x > 0) return;
        int* info = static_cast<int*>(args.info) + system;
        if (!solved)
            atomicExch(info, -1);
        else if (!(condition * args.epsilon <= 1))  // true for NaN
            atomicCAS(info, 0, args.n + 1);
    }
    struct Begun {
        bool positive, iterates;  // T may be positive definite; there are steps to run
    };
    // Computes spectra, the initial residual and solution, and shared.rhs.
    __device__ __forceinline__ Begun begin(unsigned rhs) {
        const i64 column = row_offset(args, args.column, system_at(rhs));
        const double first = Io::template load<double>(args.column.data, column).re, matrix_scale = scale_of(first);
        const Rows rows(args.n);
        Slots values;
        double column_size = 0;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            values[s] = matrix_scale * rows.load(args.column, column, s);
            column_size += fabs(values[s]);
        }
        column_size = over_block(Buffer::kFirst, column_size, sum_of);
        store(values, residual());
        const bool positive = first > 0 && transform_matrix(matrix_scale * first);

        load_right(rhs, 1, values);
        const double largest = over_block(Buffer::kSecond, largest_of(values), max_or_nan);
        // Right-hand sides with infinities or NaN have NaN solutions and do not affect info.
        const bool finite = largest - largest == 0;
        const double right_scale = is_probe(rhs) || !(largest > 0) ? 1 : scale_of(largest);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            residual()[row_at(s)] = right_scale * values[s];
            solution()[row_at(s)] = 0;
        }
        if (threadIdx.x == 0)
            shared.rhs = {.column_size = column_size,
                          .right_scale = right_scale,
                          .solution_scale = finite ? matrix_scale / right_scale : __longlong_as_double(-1),
                          .allowed = allowed(rhs, column_size)};
        __syncthreads();
        return {positive, positive && finite && largest > 0};
    }
    __device__ __forceinline__ void run(unsigned rhs) {
        const Begun begun = begin(rhs);
        const bool solved = begun.iterates ? iterate(rhs) : begun.positive;
        Slots values;
        load(solution(), values);
        if (is_probe(rhs)) {
            write_info(system_at(rhs), solved,
                       solved ? shared.rhs.column_size * over_block(Buffer::kThird, largest_of(values), max_or_nan) : 0);
            return;
        }
        write_info(system_at(rhs), solved, 0);
        const double scale = solved ? shared.rhs.solution_scale : __longlong_as_double(-1);
        const Rows rows(args.n);
#pragma unroll
        for (int s = 0; s < kSlots; ++s)
            if (rows.has(s))
                Io::store(args.out, (static_cast<i64>(system_at(rhs)) * args.n + rows.at(s)) * args.columns + column_at(rhs),
                          {static_cast<typename Io::Real>(values[s] * scale), 0});
    }
};

template <ToeplitzPcgConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, 1) toeplitz_pcg(const __grid_constant__ ToeplitzPcgArgs args) {
    __builtin_assume(threadIdx.x < kConfig.threads);  // otherwise every pass of a transform checks it
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ToeplitzPcgSharedPlan<kConfig>*>(memory);
    ToeplitzPcg<kConfig> kernel(args, shared);
    const unsigned all = static_cast<unsigned>(args.rows) * kernel.rhs_per_system();
#pragma unroll 1
    for (unsigned rhs = blockIdx.x; rhs < all; rhs += gridDim.x) {
        __syncthreads();
        kernel.run(rhs);
    }
}

}  // namespace gdn_cuda::structured
