// structured/vandermonde: out_l = 2 Re sum over n of v_n e^(x_n l).
//
// With l = a T + b this is a product of two small tables, (v_n e^(x_n a T)) and (e^(x_n b)), over twice as many columns as
// there are poles: few exponentials, and a matrix product of real numbers. Tables are made from 16 + T / 16 powers each, with
// phases that are exact (phase.cuh). A thread reads its 8 rows and 8 columns of both 16 bytes at a time, a warp without
// conflicts, and writes whole lines.
//
// Bound: arithmetic, two products and sums a pole and an output. For 32 poles and T = 128, of a thread's 5500 instructions 4096
// are those, 450 read the tables and count, and 720 make them; a second block a multiprocessor covers what they wait for. On an
// H200, 45 % of the products' rate (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde_powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
struct Vandermonde {
    using Table = VandermondePowers<kConfig>;
    using Io = typename Table::Io;
    using Real = typename Table::Real;
    using Number = typename Table::Number;
    using Plan = VandermondeSharedPlan<kConfig>;
    static constexpr int kMine = kConfig.side / kConfig.grid;  // outputs of a thread, along each side
    static constexpr int kWidth = 16 / int(sizeof(Real)), kVector = kMine < kWidth ? kMine : kWidth;
    using Vector = Pack<Real, kVector>;
    using Entries = Pack<Real, kWidth>;

    const VandermondeArgs& args;
    Plan& shared;

    // A thread's rows of a square follow each other, and its columns are so many vectors, a grid of them apart.
    __device__ __forceinline__ static int first_row() { return static_cast<int>(threadIdx.x) / kConfig.grid * kMine; }
    __device__ __forceinline__ static int column(int i) {
        return i / kVector * kConfig.grid * kVector + static_cast<int>(threadIdx.x) % kConfig.grid * kVector;
    }
    __device__ __forceinline__ void bring(i64 residues, i64 exponents, int first_pole) {
        if (threadIdx.x >= kConfig.poles) return;
        Table::bring(shared.roots, args.exponents, exponents, first_pole, args.pole_count);
        const int pole = first_pole + static_cast<int>(threadIdx.x);
        Number v{};
        if (pole < args.pole_count) v = Io::load(args.residues.data, residues + pole * args.residues.step);
        Table::put(shared.residues[threadIdx.x], {2 * v.re, 2 * v.im});
    }
    // From roots of the same group of lanes.
    __device__ __forceinline__ void make_tables(int poles) {
        constexpr int kRound = Table::kLanes * kWidth, kRoots = Table::kRoots;  // entries a group of lanes makes at once
        const bool leaps = Table::of_leaps();
        const int first = Table::lane() * kWidth;
#pragma unroll 1
        for (int pole = Table::first_of_group(); pole < poles; pole += Table::kGroups) {
            const Number v = Table::get(shared.residues[pole]);
            Number fine[kWidth];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                fine[i] = Table::fine(shared.roots, pole, leaps, first % kRoots + i);
                if (!leaps) fine[i].im = -fine[i].im;
            }
            auto& to = leaps ? shared.far[pole] : shared.near[pole];
#pragma unroll
            for (int entry = 0; entry < kConfig.side; entry += kRound) {
                Number coarse = Table::coarse(shared.roots, pole, leaps, (first + entry) / kRoots);
                coarse = leaps ? Table::product(v, coarse) : Number{coarse.re, -coarse.im};
                Entries re, im;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    const Number power = Table::product(coarse, fine[i]);
                    re.at[i] = power.re;
                    im.at[i] = power.im;
                }
                *reinterpret_cast<Entries*>(&to[0][first + entry]) = re;
                *reinterpret_cast<Entries*>(&to[1][first + entry]) = im;
            }
        }
    }
    __device__ __forceinline__ static void load(Real (&to)[kMine], const Real* from, int apart) {
#pragma unroll
        for (int i = 0; i < kMine; i += kVector) {
            const Vector vector = *reinterpret_cast<const Vector*>(from + i / kVector * apart);
#pragma unroll
            for (int j = 0; j < kVector; ++j) to[i + j] = vector.at[j];
        }
    }
    __device__ __forceinline__ void multiply(Real (&sums)[kMine][kMine], int poles) const {
#pragma unroll 1
        for (int pole = 0; pole < poles; ++pole)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                Real far[kMine], near[kMine];
                load(far, &shared.far[pole][part][first_row()], kVector);
                load(near, &shared.near[pole][part][column(0)], kConfig.grid * kVector);
#pragma unroll
                for (int a = 0; a < kMine; ++a)
#pragma unroll
                    for (int b = 0; b < kMine; ++b) sums[a][b] += far[a] * near[b];
            }
    }
    // `out` is where the square begins, `rest` how much of the row does from there on.
    __device__ __forceinline__ static void store(const Real (&sums)[kMine][kMine], Real* out, i64 rest) {
        const int first = first_row() * kConfig.side + column(0);
        Real* const mine = out + first;
        if (rest >= kConfig.square() && reinterpret_cast<unsigned long long>(out) % sizeof(Vector) == 0) {
#pragma unroll
            for (int a = 0; a < kMine; ++a)
#pragma unroll
                for (int b = 0; b < kMine; b += kVector) {
                    Vector vector;
#pragma unroll
                    for (int i = 0; i < kVector; ++i) vector.at[i] = sums[a][b + i];
                    *reinterpret_cast<Vector*>(mine + a * kConfig.side + b * kConfig.grid) = vector;
                }
            return;
        }
        const int mine_left = static_cast<int>(rest < kConfig.square() ? rest : kConfig.square()) - first;
#pragma unroll
        for (int a = 0; a < kMine; ++a)
#pragma unroll
            for (int b = 0; b < kMine; ++b) {
                const int at = a * kConfig.side + b / kVector * kVector * kConfig.grid + b % kVector;
                if (at < mine_left) mine[at] = sums[a][b];
            }
    }
    __device__ __forceinline__ void run() {
        const auto squares = static_cast<unsigned>((args.steps + kConfig.square() - 1) / kConfig.square());
        const unsigned row = blockIdx.x / squares;
        const i64 first_leap = static_cast<i64>(blockIdx.x - row * squares) * kConfig.side;
        i64 residues, exponents;
        rows_of(args, args.residues, args.exponents, row, residues, exponents);
        Real sums[kMine][kMine]{};
#pragma unroll 1
        for (int first = 0; first < args.pole_count; first += kConfig.poles) {
            const int poles = min(args.pole_count - first, kConfig.poles);
            bring(residues, exponents, first);
            __syncthreads();
            Table::make_roots(shared.roots, poles, first_leap);
            __syncwarp();
            make_tables(poles);
            __syncthreads();
            multiply(sums, poles);
        }
        const i64 done = first_leap * kConfig.side;
        store(sums, static_cast<Real*>(args.out) + row * args.steps + done, args.steps - done);
    }
};

template <VandermondeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.least_blocks())
    vandermonde(const __grid_constant__ VandermondeArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    Vandermonde<kConfig>{args, *reinterpret_cast<VandermondeSharedPlan<kConfig>*>(memory)}.run();
}

}  // namespace gdn_cuda::structured
