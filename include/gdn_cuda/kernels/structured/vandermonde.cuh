// structured/vandermonde: out_l = 2 Re sum over n of v_n e^(x_n l).
//
// With l = a T + b this is a product of two small tables, (v_n e^(x_n a T)) and (e^(x_n b)), over twice as many columns as
// there are poles: few exponentials, and a matrix product of real numbers. Tables are made from 16 + T / 16 powers each, with
// phases that are exact (phase.cuh).
//
// Bound: arithmetic, two products and sums a pole and an output, and the tables: 16 of 128 times as much for 32 poles.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde_powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
struct Vandermonde {
    using Table = VandermondePowers<kConfig>;
    using Io = typename Table::Io;
    using Real = typename Table::Real;
    using Number = typename Table::Number;
    using Plan = VandermondeSharedPlan<kConfig, Real>;
    static constexpr int kMine = kConfig.side / kConfig.grid;  // outputs of a thread, along each side

    const VandermondeArgs& args;
    Plan& shared;

    // Of poles past the last, zeros.
    __device__ __forceinline__ void make_tables(i64 residues, int first_pole) {
#pragma unroll 1
        for (int i = threadIdx.x; i < kConfig.poles * 2 * kConfig.side; i += kConfig.threads()) {
            const int pole = i / (2 * kConfig.side), leaps = i / kConfig.side % 2, times = i % kConfig.side;
            auto& table = leaps ? shared.far[pole] : shared.near[pole];
            Number power{};
            if (first_pole + pole < args.pole_count) {
                power = Table::power(shared.roots, pole, leaps, times);
                if (leaps) {
                    const Number v = Io::load(args.residues.data, residues + (first_pole + pole) * args.residues.step);
                    power = Table::product({2 * v.re, 2 * v.im}, power);
                }
            }
            table[0][times] = power.re;
            table[1][times] = leaps ? power.im : -power.im;
        }
    }
    __device__ __forceinline__ void run() {
        const i64 squares = (args.steps + kConfig.square() - 1) / kConfig.square(), row = blockIdx.x / squares,
                  first_leap = blockIdx.x % squares * kConfig.side;
        const i64 residues = row_of(args, args.residues, row), exponents = row_of(args, args.exponents, row);
        const int first_a = static_cast<int>(threadIdx.x) / kConfig.grid * kMine,
                  first_b = static_cast<int>(threadIdx.x) % kConfig.grid * kMine;
        Real sums[kMine][kMine]{};
#pragma unroll 1
        for (int first = 0; first < args.pole_count; first += kConfig.poles) {
            Table::make_roots(shared.roots, args.exponents, exponents, first, args.pole_count, first_leap);
            __syncthreads();
            make_tables(residues, first);
            __syncthreads();
#pragma unroll 2
            for (int pole = 0; pole < kConfig.poles; ++pole)
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    Real far[kMine], near[kMine];
#pragma unroll
                    for (int i = 0; i < kMine; ++i) {
                        far[i] = shared.far[pole][part][first_a + i];
                        near[i] = shared.near[pole][part][first_b + i];
                    }
#pragma unroll
                    for (int a = 0; a < kMine; ++a)
#pragma unroll
                        for (int b = 0; b < kMine; ++b) sums[a][b] += far[a] * near[b];
                }
        }
        Real* out = static_cast<Real*>(args.out) + row * args.steps;
#pragma unroll
        for (int a = 0; a < kMine; ++a)
#pragma unroll
            for (int b = 0; b < kMine; ++b) {
                const i64 l = (first_leap + first_a + a) * kConfig.side + first_b + b;
                if (l < args.steps) out[l] = sums[a][b];
            }
    }
};

template <VandermondeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) vandermonde(const __grid_constant__ VandermondeArgs args) {
    __shared__ VandermondeSharedPlan<kConfig, typename Vandermonde<kConfig>::Real> shared;
    Vandermonde<kConfig>{args, shared}.run();
}

}  // namespace gdn_cuda::structured
