// structured/toeplitz_sums: T x or T^t x, T[i, j] = column[i - j] on and below the diagonal, row[j - i] above, by direct sums.
//
// A block has 32 strips of a system's rows, one per lane; each warp takes a slice of T's columns, a panel of which is in
// shared memory at a time.
// A strip of 4 rows and 4 columns has 7 diagonals, of which the next 4 columns reuse 3: a thread keeps a sliding
// window in registers, so it reads 4 diagonals, and 4 values of x by broadcast, for 16 products; strips of 8 read half as much
// per product. The warps' sums are added in a fixed order.
//
// Bound: for few systems, latency: 4 systems of 256 take 3500 cycles on an H200, a quarter waiting for the arguments, a third
// waiting for T and x, a quarter summing. For many systems, multiply-adds: 256 systems of 1024 in strips of 8 reach 44 % of
// their rate.
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/matvec_common.cuh>
#include <gdn_cuda/kernels/structured/toeplitz/sums_plan.cuh>

namespace gdn_cuda::structured {

template <class Real>
__device__ __forceinline__ void add_product(Real& sum, const Real& x, const Real& y) {
    sum += x * y;
}
template <class Real>
__device__ __forceinline__ void add_product(ComplexNumber<Real>& sum, const ComplexNumber<Real>& x,
                                            const ComplexNumber<Real>& y) {
    sum.re += x.re * y.re;
    sum.im += x.re * y.im;
    sum.re -= x.im * y.im;
    sum.im += x.im * y.re;
}

template <ToeplitzSumsConfig kConfig>
struct ToeplitzSums {
    using Operands = ToeplitzOperands<kConfig.io>;
    using Number = typename Operands::Number;
    using Plan = ToeplitzSumsSharedPlan<kConfig>;
    static constexpr int kStrip = kConfig.strip, kPitch = Plan::kPitch, kThreads = kConfig.threads, kWarps = kConfig.warps(),
                         kRows = kConfig.rows(), kPanel = ToeplitzSumsConfig::kPanel, kStep = 2 * kStrip;
    static constexpr int kXPerThread = kPanel / kThreads, kTPerThread = (kPanel + kRows + kThreads - 1) / kThreads;
    using Strip = Number[kStrip];
    struct alignas(16) Vector16 {
        static constexpr int kCount = 16 / sizeof(Number);
        Number values[kCount];
    };

    const Operands& operands;
    Number *diagonals, *vector, *sums;
    int first_row, n, slice, columns;  // slice: columns per warp; columns: columns per panel

    __device__ __forceinline__ ToeplitzSums(const Operands& operands, Plan& shared, int first_row)
        : operands(operands),
          diagonals(reinterpret_cast<Number*>(shared.diagonals)),
          vector(reinterpret_cast<Number*>(shared.right)),
          sums(reinterpret_cast<Number*>(shared.sums)),
          first_row(first_row),
          n(operands.args.n),
          slice((min(n, kPanel) + kWarps * kStep - 1) / (kWarps * kStep) * kStep),
          columns(slice * kWarps) {}

    // ---- Copies between registers and shared memory. Element p of `diagonals` is the diagonal at distance p - columns from
    // that of the block's first row and the panel's first column.

    __device__ __forceinline__ static int place(int p) { return p / kStrip * kPitch + p % kStrip; }
    __device__ __forceinline__ void store_t(const Number (&loaded)[kTPerThread]) const {
#pragma unroll
        for (int i = 0; i < kTPerThread; ++i)
            if (const int p = threadIdx.x + i * kThreads; p < columns + kRows) diagonals[place(p)] = loaded[i];
    }
    __device__ __forceinline__ void store_x(const Number (&loaded)[kXPerThread]) const {
#pragma unroll
        for (int i = 0; i < kXPerThread; ++i)
            if (const int j = threadIdx.x + i * kThreads; j < columns) vector[j] = loaded[i];
    }
    __device__ __forceinline__ static void load(Strip& to, const Number* from) {
#pragma unroll
        for (int i = 0; i < kStrip; i += Vector16::kCount) {
            const Vector16 got = *reinterpret_cast<const Vector16*>(from + i);
#pragma unroll
            for (int e = 0; e < Vector16::kCount; ++e) to[i + e] = got.values[e];
        }
    }
    __device__ __forceinline__ static void store(Number* to, const Strip& from) {
#pragma unroll
        for (int i = 0; i < kStrip; i += Vector16::kCount) {
            Vector16 put;
#pragma unroll
            for (int e = 0; e < Vector16::kCount; ++e) put.values[e] = from[i + e];
            *reinterpret_cast<Vector16*>(to + i) = put;
        }
    }

    // ---- Sums

    // Each step adds two strips of columns to separate sums: a single sum has a larger error and a longer chain of dependent
    // additions.
    __device__ __forceinline__ void add(Strip& total, int lane, int warp) const {
        Strip high, middle, low, left, right, even = {}, odd = {};
        const Number *window = diagonals + ((columns - warp * slice) / kStrip + lane) * kPitch, *x = vector + warp * slice;
        load(high, window);
#pragma unroll 1
        for (int steps = slice / kStep; steps > 0; --steps) {
            load(middle, window - kPitch);
            load(low, window - 2 * kPitch);
            load(left, x);
            load(right, x + kStrip);
            window -= 2 * kPitch;
            x += kStep;
            add_products(even, high, middle, left);
            add_products(odd, middle, low, right);
#pragma unroll
            for (int r = 0; r < kStrip; ++r) high[r] = low[r];
        }
#pragma unroll
        for (int r = 0; r < kStrip; ++r) total[r] = total[r] + (even[r] + odd[r]);
    }
    __device__ __forceinline__ static void add_products(Strip& sum, const Strip& high, const Strip& low, const Strip& x) {
#pragma unroll
        for (int c = 0; c < kStrip; ++c)
#pragma unroll
            for (int r = 0; r < kStrip; ++r) add_product(sum[r], r >= c ? high[r - c] : low[kStrip + r - c], x[c]);
    }
    __device__ __forceinline__ void finish(int k) const {
        for (int i = threadIdx.x; i < min(kRows, n - first_row); i += kThreads) {
            Number total = sums[place(i)];
#pragma unroll
            for (int w = 1; w < kWarps; ++w) total = total + sums[place(i) + w * 32 * kPitch];
            *operands.result(first_row + i, k) = total;
        }
    }
    // Loops over right-hand sides and their panels; the next panel is prefetched into registers while the current one is
    // summed. If T fits one panel, it stays in shared memory.
    __device__ __forceinline__ void run(int count) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = (n - 1) / kPanel;
        Number next_t[kTPerThread], next_x[kXPerThread];
        const auto prefetch = [&](int panel, int k, bool t) {
            const int thread = threadIdx.x;
            if (t) operands.load_diagonals(next_t, first_row - panel * kPanel - columns + thread, kThreads);
            operands.load_right(next_x, panel * kPanel + thread, kThreads, k);
        };
        prefetch(0, 0, true);
        store_t(next_t);
        Strip total = {};
#pragma unroll 1
        for (int k = 0, panel = 0;;) {
            store_x(next_x);
            __syncthreads();
            const bool whole = panel == last;
            const int next = whole ? 0 : panel + 1, next_k = k + whole;
            if (next_k < count) prefetch(next, next_k, last > 0);
            add(total, lane, warp);
            if (whole) {
                store(sums + (warp * 32 + lane) * kPitch, total);
#pragma unroll
                for (int r = 0; r < kStrip; ++r) total[r] = Number{};
            }
            __syncthreads();
            if (whole) finish(k);
            if (next_k == count) return;
            if (last > 0) store_t(next_t);
            panel = next;
            k = next_k;
        }
    }
};

template <ToeplitzSumsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.least_blocks())
    toeplitz_sums(const __grid_constant__ ToeplitzMatvecArgs args) {
    using Kernel = ToeplitzSums<kConfig>;
    extern __shared__ __align__(16) unsigned char memory[];
    const i64 first = blockIdx.z * args.columns_per_block;
    const typename Kernel::Operands operands(args, blockIdx.x, first);
    const Kernel kernel(operands, *reinterpret_cast<typename Kernel::Plan*>(memory),
                        static_cast<int>(blockIdx.y) * Kernel::kRows);
    kernel.run(columns_of(args, first));
}

}  // namespace gdn_cuda::structured
