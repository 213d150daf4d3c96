// structured/vandermonde_moments: sums over l of u_l e^(x_n l), and of l u_l e^(x_n l), for real u: the transpose of
// structured/vandermonde, and what its gradients are made of.
//
// With l = a T + b, first sums over b for every a: a product of u, as a matrix, and the table of e^(x_n b) (and b e^(x_n b));
// then each times e^(x_n a T), summed over a. A block takes 16 poles and a square of u.
//
// Bound: arithmetic, two (with both orders four) products and sums a pole and a number.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde_moments_plan.cuh>
#include <gdn_cuda/kernels/structured/vandermonde_powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeMomentsConfig kConfig>
struct VandermondeMoments {
    using Table = VandermondePowers<kConfig.powers()>;
    using Real = typename Table::Real;
    using Number = typename Table::Number;
    using Plan = VandermondeMomentsSharedPlan<kConfig, Real>;
    static constexpr int kPoles = VandermondeMomentsConfig::kPoles, kParts = 2 * kConfig.orders;
    static constexpr int kMyLeaps = kConfig.side / kConfig.grid, kMyPoles = kPoles / kConfig.grid;

    const VandermondeMomentsArgs& args;
    Plan& shared;

    __device__ __forceinline__ void bring_tile(i64 numbers, i64 first_leap, int first_step, int first_pole) {
#pragma unroll 1
        for (int i = threadIdx.x; i < kConfig.side * kConfig.tile; i += kConfig.threads()) {
            const int step = i % kConfig.tile, leap = i / kConfig.tile;
            const i64 l = (first_leap + leap) * kConfig.side + first_step + step;
            shared.numbers[step][leap] =
                l < args.steps ? static_cast<const Real*>(args.numbers.data)[numbers + l * args.numbers.step] : Real{};
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < kConfig.tile * kPoles; i += kConfig.threads()) {
            const int step = i / kPoles, pole = i % kPoles;
            // Past the last step it may be infinite, and no number: there u is 0.
            const bool exists = first_pole + pole < args.pole_count && first_step + step < args.steps;
            const Number power = exists ? Table::power(shared.roots, pole, false, first_step + step) : Number{};
            auto& to = shared.powers[step][pole];
            to[0] = power.re;
            to[1] = power.im;
            if constexpr (kConfig.orders == 2) {
                to[2] = power.re * (first_step + step);
                to[3] = power.im * (first_step + step);
            }
        }
    }
    __device__ __forceinline__ void run() {
        const int groups = (args.pole_count + kPoles - 1) / kPoles;
        const i64 squares = (args.steps + kConfig.square() - 1) / kConfig.square();
        const i64 square = blockIdx.x / groups % squares, row = blockIdx.x / groups / squares;
        const int first_pole = static_cast<int>(blockIdx.x % groups) * kPoles;
        const i64 first_leap = square * kConfig.side, numbers = row_of(args, args.numbers, row);
        const int my_row = static_cast<int>(threadIdx.x) / kConfig.grid,
                  my_pole = static_cast<int>(threadIdx.x) % kConfig.grid * kMyPoles;
        Table::make_roots(shared.roots, args.exponents, row_of(args, args.exponents, row), first_pole, args.pole_count,
                          first_leap);

        Real sums[kMyLeaps][kMyPoles][kParts]{};
#pragma unroll 1
        for (int first_step = 0; first_step < kConfig.side; first_step += kConfig.tile) {
            __syncthreads();
            bring_tile(numbers, first_leap, first_step, first_pole);
            __syncthreads();
#pragma unroll 4
            for (int step = 0; step < kConfig.tile; ++step)
#pragma unroll
                for (int leap = 0; leap < kMyLeaps; ++leap)
#pragma unroll
                    for (int pole = 0; pole < kMyPoles; ++pole)
#pragma unroll
                        for (int part = 0; part < kParts; ++part)
                            sums[leap][pole][part] +=
                                shared.numbers[step][my_row * kMyLeaps + leap] * shared.powers[step][my_pole + pole][part];
        }
        __syncthreads();
#pragma unroll
        for (int pole = 0; pole < kMyPoles; ++pole) {
            Number first{}, second{};
#pragma unroll
            for (int leap = 0; leap < kMyLeaps; ++leap) {
                const int times = my_row * kMyLeaps + leap;
                if ((first_leap + times) * kConfig.side >= args.steps || first_pole + my_pole + pole >= args.pole_count) break;
                const Number power = Table::power(shared.roots, my_pole + pole, true, times);
                const auto& mine = sums[leap][pole];
                const Number whole = Table::product(power, {mine[0], mine[1]});
                first = {first.re + whole.re, first.im + whole.im};
                if constexpr (kConfig.orders == 2) {
                    const Number rest = Table::product(power, {mine[2], mine[3]});
                    const auto steps = static_cast<Real>((first_leap + times) * kConfig.side);
                    second = {second.re + whole.re * steps + rest.re, second.im + whole.im * steps + rest.im};
                }
            }
            auto& to = shared.sums[my_row][my_pole + pole];
            to[0] = first.re;
            to[1] = first.im;
            if constexpr (kConfig.orders == 2) {
                to[2] = second.re;
                to[3] = second.im;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kPoles * kConfig.orders; i += kConfig.threads()) {
            const int pole = i % kPoles, order = i / kPoles;
            if (first_pole + pole >= args.pole_count) continue;
            Number sum{};
            for (int other = 0; other < kConfig.grid; ++other) {
                sum.re += shared.sums[other][pole][2 * order];
                sum.im += shared.sums[other][pole][2 * order + 1];
            }
            const i64 at = ((square * kConfig.orders + order) * args.rows + row) * args.pole_count + first_pole + pole;
            static_cast<Number*>(args.out)[at] = sum;
        }
    }
};

template <VandermondeMomentsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) vandermonde_moments(const __grid_constant__ VandermondeMomentsArgs args) {
    __shared__ VandermondeMomentsSharedPlan<kConfig, typename VandermondeMoments<kConfig>::Real> shared;
    VandermondeMoments<kConfig>{args, shared}.run();
}

}  // namespace gdn_cuda::structured
