// structured/vandermonde_moments: sums over l of u_l e^(x_n l), and of l u_l e^(x_n l), for real u: the transpose of
// structured/vandermonde, from which its gradients are computed.
//
// With l = a T + b, u is first summed over b for every a: a product of u, as a matrix, with the table of e^(x_n b) (and b
// e^(x_n b)). These sums are then multiplied by e^(x_n a T) and summed over a. A block computes 32 complex sums (16 poles if
// both orders are computed) over a square of u; cp.async copies the next tile while the current one is multiplied. A thread has
// 4 of the sums and 8 leaps (4 in fp64), at a stride of the block's rows of threads; the power of a leap is a coarse root times
// a fine root. Short sums use smaller squares, of which a smaller part is past the last step.
//
// Bound: arithmetic, two multiply-adds per pole and value (four with both orders). For T = 128, 8192 of a thread's 11,000
// instructions are multiply-adds, 1000 load operands and count, and 800 compute tables. On an H200 the kernel reaches 45 % of
// the multiply-add rate, including the torch operations after it (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/structured/vandermonde/moments_plan.cuh>
#include <gdn_cuda/kernels/structured/vandermonde/powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeMomentsConfig kConfig>
struct VandermondeMoments {
    using Config = VandermondeMomentsConfig;
    using Table = VandermondePowers<kConfig.powers(), kConfig.threads()>;
    using Real = typename Table::Real;
    using Number = typename Table::Number;
    using Plan = VandermondeMomentsSharedPlan<kConfig>;
    static constexpr int kPoles = kConfig.poles(), kOrders = kConfig.orders, kSums = Config::kSums,
                         kMySums = Config::kSumsPerLane;
    static constexpr int kRows = kConfig.rows(), kMyLeaps = kConfig.leaps(), kRoots = VandermondeConfig::kRoots;
    static_assert(kRoots % kRows == 0);
    static constexpr int kWidth = 16 / int(sizeof(Real)),
                         kVectors = kConfig.tile / kWidth;  // values per vector, vectors per leap
    static constexpr int kTiles = kConfig.side / kConfig.tile;
    using Vector = Pack<Real, kWidth>;

    const VandermondeMomentsArgs& args;
    Plan& shared;

    __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / Config::kLanes; }
    // Index of a thread's sum i among the block's sums, which a lane owns in vectors of 16 bytes.
    __device__ __forceinline__ static int sum_of(int i) {
        return (i / (kWidth / 2) * Config::kLanes + static_cast<int>(threadIdx.x) % Config::kLanes) * (kWidth / 2) +
               i % (kWidth / 2);
    }
    // XOR swizzle: a warp's four leaps read the same vector from different banks.
    __device__ __forceinline__ static int swizzled(int leap, int at) { return (at ^ (leap & 3)) * kWidth; }

    // Copies a tile by cp.async. `values` is the square, with `count` values.
    __device__ __forceinline__ void copy_tile(int tile, const Real* values, int count, bool whole_vectors) {
        constexpr int kLeaps = kConfig.threads() / kVectors;  // per iteration
        static_assert(kLeaps % 4 == 0 && kConfig.side % kLeaps == 0, "a thread's vector has the same swizzle in all its leaps");
        const int leap = static_cast<int>(threadIdx.x) / kVectors, at = static_cast<int>(threadIdx.x) % kVectors,
                  first = leap * kConfig.side + tile * kConfig.tile + at * kWidth;
        Real* const to = &shared.values[tile % 2][leap][swizzled(leap, at)];
        if (whole_vectors) {
            const Real* const from = values + first;
            const unsigned address = shared_address(to);
#pragma unroll
            for (int i = 0; i < kConfig.side; i += kLeaps)
                cp_async_16_zfill(address + i * kConfig.tile * int(sizeof(Real)), from + i * kConfig.side,
                                  first + i * kConfig.side < count);
        } else {
#pragma unroll 1
            for (int i = 0; i < kConfig.side; i += kLeaps)
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    const int index = first + i * kConfig.side + j;
                    to[i * kConfig.tile + j] = index < count ? values[index * args.values.step] : Real{};
                }
        }
        cp_async_fence();
    }
    // Powers past the last step, where u is 0, may be infinite or NaN: they are set to 0.
    __device__ __forceinline__ void make_table(i64 steps) {
        constexpr int kSteps = kConfig.threads() / kPoles;  // per iteration
        static_assert(kRoots % kSteps == 0);
        const int pole = static_cast<int>(threadIdx.x) % kPoles, first = static_cast<int>(threadIdx.x) / kPoles;
        const int left = static_cast<int>(steps < kConfig.side ? steps : kConfig.side) - first;
#pragma unroll
        for (int i = 0; i < kConfig.side; i += kSteps) {
            Number power = Table::product(Table::fine(shared.roots, pole, false, first + i % kRoots),
                                          Table::coarse(shared.roots, pole, false, i / kRoots));
            if (i >= left) power = {};
            auto& to = shared.powers[first + i];
            Table::put(to[pole], power);
            if constexpr (kOrders == 2) Table::put(to[kPoles + pole], {power.re * (first + i), power.im * (first + i)});
        }
    }
    __device__ __forceinline__ void multiply(Number (&sums)[kMyLeaps][kMySums], int tile) const {
        const Real* const values = shared.values[tile % 2][row()];
#pragma unroll 1
        for (int at = 0; at < kVectors; ++at) {
            Vector u[kMyLeaps];
#pragma unroll
            for (int leap = 0; leap < kMyLeaps; ++leap)
                u[leap] = *reinterpret_cast<const Vector*>(values + swizzled(row(), at) + leap * kRows * kConfig.tile);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                const auto& step_powers = shared.powers[tile * kConfig.tile + at * kWidth + j];
                Number powers[kMySums];
#pragma unroll
                for (int i = 0; i < kMySums; i += kWidth / 2) {
                    const Vector both = *reinterpret_cast<const Vector*>(step_powers[sum_of(i)]);
#pragma unroll
                    for (int k = 0; k < kWidth / 2; ++k) powers[i + k] = {both.at[2 * k], both.at[2 * k + 1]};
                }
#pragma unroll
                for (int leap = 0; leap < kMyLeaps; ++leap)
#pragma unroll
                    for (int i = 0; i < kMySums; ++i) {
                        sums[leap][i].re += u[leap].at[j] * powers[i].re;
                        sums[leap][i].im += u[leap].at[j] * powers[i].im;
                    }
            }
        }
    }
    // Multiplies the sums of this thread's leaps by their powers and adds them up. The second order's factor l is b plus the
    // leap's first step. Leaps at a distance of kRoots have the same fine root, which multiplies their sum.
    __device__ __forceinline__ void add_leaps(const Number (&sums)[kMyLeaps][kMySums], i64 first_leap) {
        constexpr int kMyPoles = kMySums / kOrders, kFine = kRoots / kRows;  // fine roots of a thread
        const i64 steps = args.steps - (first_leap + row()) * kConfig.side;  // from this thread's first leap on
#pragma unroll
        for (int i = 0; i < kMyPoles; ++i) {
            const int pole = sum_of(i);
            Number first{}, second{};
#pragma unroll
            for (int fine = 0; fine < kFine; ++fine) {
                if (fine * kRows * kConfig.side >= steps) break;
                Number part{}, second_part{};
#pragma unroll
                for (int leap = fine; leap < kMyLeaps; leap += kFine) {
                    if (leap * kRows * kConfig.side >= steps) break;
                    const Number power = Table::coarse(shared.roots, pole, true, leap / kFine);
                    add_product(part, power, sums[leap][i]);
                    if constexpr (kOrders == 2) {
                        const auto before = static_cast<Real>((first_leap + row() + leap * kRows) * kConfig.side);
                        const Number &whole = sums[leap][i], &rest = sums[leap][kMyPoles + i];
                        add_product(second_part, power, {whole.re * before + rest.re, whole.im * before + rest.im});
                    }
                }
                const Number power = Table::fine(shared.roots, pole, true, fine * kRows + row());
                add_product(first, power, part);
                if constexpr (kOrders == 2) add_product(second, power, second_part);
            }
            Table::put(shared.sums[row()][pole], first);
            if constexpr (kOrders == 2) Table::put(shared.sums[row()][kPoles + pole], second);
        }
    }
    __device__ __forceinline__ static void add_product(Number& sum, const Number& x, const Number& y) {
        sum.re += x.re * y.re - x.im * y.im;
        sum.im += x.re * y.im + x.im * y.re;
    }
    __device__ __forceinline__ void run() {
        const auto groups = static_cast<unsigned>((args.pole_count + kPoles - 1) / kPoles),
                   squares = static_cast<unsigned>((args.steps + kConfig.square() - 1) / kConfig.square());
        const unsigned block = blockIdx.x / groups, values_row = block / squares, square = block - values_row * squares;
        const int first_pole = static_cast<int>(blockIdx.x - block * groups) * kPoles;
        const i64 first_leap = static_cast<i64>(square) * kConfig.side, done = first_leap * kConfig.side,
                  left = args.steps - done;
        i64 first_value, exponents;
        set_row_offsets(args, values_row, RowOffset{args.values, first_value}, RowOffset{args.exponents, exponents});
        const Real* const values = static_cast<const Real*>(args.values.data) + first_value + done * args.values.step;
        const int count = static_cast<int>(left < kConfig.square() ? left : kConfig.square());
        const bool whole_vectors =
            args.values.step == 1 && count % kWidth == 0 && reinterpret_cast<unsigned long long>(values) % 16 == 0;

        copy_tile(0, values, count, whole_vectors);
        if (threadIdx.x < kPoles) Table::load_exponents(shared.roots, args.exponents, exponents, first_pole, args.pole_count);
        __syncthreads();
        Table::make_roots(shared.roots, kPoles, first_leap);
        __syncthreads();
        make_table(args.steps);
        Number sums[kMyLeaps][kMySums]{};
#pragma unroll 1
        for (int tile = 0; tile < kTiles; ++tile) {
            cp_async_wait<0>();
            __syncthreads();
            if (tile + 1 < kTiles) copy_tile(tile + 1, values, count, whole_vectors);
            multiply(sums, tile);
        }
        __syncthreads();
        add_leaps(sums, first_leap);
        __syncthreads();
        if (threadIdx.x < kSums) {
            const int pole = static_cast<int>(threadIdx.x) % kPoles, order = static_cast<int>(threadIdx.x) / kPoles;
            if (first_pole + pole >= args.pole_count) return;
            Number sum{};
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const Number part = Table::get(shared.sums[i][threadIdx.x]);
                sum = {sum.re + part.re, sum.im + part.im};
            }
            const i64 at =
                ((static_cast<i64>(square) * kOrders + order) * args.rows + values_row) * args.pole_count + first_pole + pole;
            static_cast<Number*>(args.out)[at] = sum;
        }
    }
};

template <VandermondeMomentsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.least_blocks())
    vandermonde_moments(const __grid_constant__ VandermondeMomentsArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    VandermondeMoments<kConfig>{args, *reinterpret_cast<VandermondeMomentsSharedPlan<kConfig>*>(memory)}.run();
}

}  // namespace gdn_cuda::structured
