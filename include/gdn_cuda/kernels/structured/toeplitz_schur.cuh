// structured/toeplitz_schur: solves T x = b for symmetric positive definite T, T[i, j] = column[|i - j|], in fp64 for every
// dtype.
//
// Schur's recursion computes the columns of L in T = L D L^t without inner products, Levinson's those of L^-t. Both are
//
//     p_i <- p_(i-1) - rho q_i        q_i <- q_i - rho p_(i-1)
//
// and one begins where the other ends: at step k, rows after k hold Schur's values (p is column k of L D), rows before k hold
// Levinson's (p is column k of L^-t), and row k changes from one to the other. So do right-hand sides: rows after k hold b
// minus the contributions of L's columns so far, rows before k the partial sums of columns of L^-t that become x. Nothing else
// is stored, and x is complete after the last row.
//
// A block has a system and a few right-hand sides; threads keep their rows' q and right-hand sides in registers. p shifts by
// one row each step, through shared memory; at the same time one thread stores rho and the right-hand sides of the next step,
// so a step has one barrier.
//
// info: 0; -k where the leading minor of order k is not positive (or NaN), without a solution; n + 1 where 1 / (|column|_1
// |T^-1 z|_inf) is below epsilon, z random signs: the probe, an additional right-hand side. Both are lower bounds of the
// norms of T and T^-1, so no regular matrix is reported as singular.
//
// Bound: latency of a step, on an H200 0.21 us up to 256 rows and 0.34 at 1024 (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/schur_plan.cuh>

namespace gdn_cuda::structured {

template <ToeplitzSchurConfig kConfig>
struct ToeplitzSchur {
    using Io = ElementType<kConfig.io>;
    using Shared = ToeplitzSchurSharedPlan<kConfig>;
    static constexpr int kRhs = kConfig.rhs_count(), kProbe = kConfig.columns;

    const ToeplitzSchurArgs& args;
    Shared& shared;
    unsigned system;
    i64 first_column;
    double q[kConfig.slots], rhs[kConfig.slots][kRhs], energy, inverse_energy;

    __device__ __forceinline__ static int row_at(int s) { return static_cast<int>(threadIdx.x) + s * kConfig.threads; }

    __device__ __forceinline__ bool has_column(int c) const { return c < kConfig.columns && first_column + c < args.columns; }

    // Step 0: loads the first column of T; row 0 changes to Levinson's recursion.
    __device__ __forceinline__ double begin() {
        const i64 column = row_offset(args, args.column, system), right = row_offset(args, args.right, system);
        const auto entry = [&](int i) { return Io::template load<double>(args.column.data, column + i * args.column.step).re; };
        energy = entry(0);
        inverse_energy = 1 / energy;
        double first[kRhs], sum = 0;
        const auto number = [&](int i, int c) {
            if (c == kProbe) return probe_at(i);
            const i64 at = right + i * args.right.step + (first_column + c) * args.right_column_stride;
            return has_column(c) ? Io::template load<double>(args.right.data, at).re : 0.0;
        };
#pragma unroll
        for (int c = 0; c < kRhs; ++c) first[c] = number(0, c) * inverse_energy;
        if (threadIdx.x == 0) shared.shifted[0][0] = shared.shifted[1][0] = 0;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const int i = row_at(s);
            if (i >= args.n) continue;
            const double t = entry(i);
            sum += fabs(t);
            q[s] = i == 0 ? 1 : t;
            shared.shifted[0][i + 1] = q[s];
#pragma unroll
            for (int c = 0; c < kRhs; ++c) rhs[s][c] = i == 0 ? first[c] : number(i, c) - t * first[c];
            store_next_row(0, s, i);
        }
        return sum;
    }
    // Stores the values of row k + 1 that step k + 1 needs.
    __device__ __forceinline__ void store_next_row(int k, int s, int i) {
        if (i != k + 1) return;
        auto& next_row = shared.next_row[(k + 1) % 2];
        next_row.reflection = q[s] * inverse_energy;
#pragma unroll
        for (int c = 0; c < kRhs; ++c) next_row.rhs[c] = rhs[s][c];
    }
    // Returns false if T is not positive definite; uniform over the block.
    __device__ __forceinline__ bool step(int k) {
        const auto& next_row = shared.next_row[k % 2];
        const double reflection = next_row.reflection;
        energy *= (1 - reflection) * (1 + reflection);
        if (!(energy > 0)) return false;
        inverse_energy = 1 / energy;
        double factor[kRhs];
#pragma unroll
        for (int c = 0; c < kRhs; ++c) factor[c] = next_row.rhs[c] * inverse_energy;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s) {
            const int i = row_at(s);
            if (i >= args.n) continue;
            const double before = shared.shifted[(k - 1) % 2][i];
            const double p = i == k ? 1 : before - reflection * q[s];
            q[s] = i == k ? -reflection : q[s] - reflection * before;
            shared.shifted[k % 2][i + 1] = p;
#pragma unroll
            for (int c = 0; c < kRhs; ++c) rhs[s][c] = i == k ? factor[c] : rhs[s][c] + (i < k ? p : -p) * factor[c];
            store_next_row(k, s, i);
        }
        return true;
    }

    __device__ __forceinline__ void write_info(double column_sum) {
        double largest = 0;
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
            if (row_at(s) < args.n) largest = max_or_nan(largest, fabs(rhs[s][kProbe]));
        column_sum = block_reduce(column_sum, shared.sums, [](double x, double y) { return x + y; });
        largest = block_reduce(largest, shared.largest, [](double x, double y) { return max_or_nan(x, y); });
        if (threadIdx.x > 0) return;
        const bool conditioned = column_sum * largest * args.epsilon <= 1;  // false for NaN
        static_cast<int*>(args.info)[system] = conditioned ? 0 : args.n + 1;
    }

    __device__ __forceinline__ void run() {
        const double column_sum = begin();
        int k = 0;
        bool positive = energy > 0;
#pragma unroll 1
        while (positive && ++k < args.n) {
            __syncthreads();
            positive = step(k);
        }
        if (first_column == 0) {
            if (positive)
                write_info(column_sum);
            else if (threadIdx.x == 0)
                static_cast<int*>(args.info)[system] = -(k + 1);
        }
#pragma unroll
        for (int s = 0; s < kConfig.slots; ++s)
#pragma unroll
            for (int c = 0; c < kConfig.columns; ++c)
                if (row_at(s) < args.n && has_column(c))
                    Io::store(args.out, (static_cast<i64>(system) * args.n + row_at(s)) * args.columns + first_column + c,
                              {static_cast<typename Io::Real>(positive ? rhs[s][c] : __longlong_as_double(-1)), 0});
    }
};

template <ToeplitzSchurConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) toeplitz_schur(const __grid_constant__ ToeplitzSchurArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ToeplitzSchurSharedPlan<kConfig>*>(memory);
    const unsigned parts = max(1u, static_cast<unsigned>((args.columns + kConfig.columns - 1) / kConfig.columns));
    ToeplitzSchur<kConfig> kernel{args, shared, blockIdx.x / parts, static_cast<i64>(blockIdx.x % parts) * kConfig.columns};
    kernel.run();
}

}  // namespace gdn_cuda::structured
