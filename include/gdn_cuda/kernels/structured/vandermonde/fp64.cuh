// structured/vandermonde's products in fp64. A thread reads its rows and columns of both tables 16 bytes at a time, without
// bank conflicts, and a warp writes whole cache lines.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde/powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
    requires(kConfig.io == DType::c128)
struct VandermondeProducts<kConfig> {
    using Table = VandermondePowers<kConfig>;
    using Real = typename Table::Real;
    using Number = typename Table::Number;
    static constexpr int kPoles = kConfig.poles;
    static constexpr int kMine = kConfig.side / kConfig.grid;  // outputs per thread along each side
    static constexpr int kWidth = 16 / int(sizeof(Real)), kVector = kMine < kWidth ? kMine : kWidth;
    using Vector = Pack<Real, kVector>;
    using Entries = Pack<Real, kWidth>;

    VandermondeSharedPlan<kConfig>& shared;
    Real sums[kMine][kMine]{};

    // A thread's rows of a square are consecutive; its columns are vectors at a stride of `grid` vectors.
    __device__ __forceinline__ static int first_row() { return static_cast<int>(threadIdx.x) / kConfig.grid * kMine; }
    __device__ __forceinline__ static int column(int i) {
        return i / kVector * kConfig.grid * kVector + static_cast<int>(threadIdx.x) % kConfig.grid * kVector;
    }
    // Number of poles that need roots if there are `poles`.
    __device__ __forceinline__ static int padded(int poles) { return poles; }

    // Called by all threads, for all of the next poles that have roots; `left` remain.
    static constexpr int kAtOnce = kPoles;
    __device__ __forceinline__ void add(int, int left) {
        const int poles = min(left, kPoles);
        make_tables(poles);
        __syncthreads();
        multiply(poles);
    }
    __device__ __forceinline__ void make_tables(int poles) {
        constexpr int kRound = Table::kLanes * kWidth, kRoots = Table::kRoots;  // entries per iteration of a group of lanes
        const bool leaps = Table::makes_leaps();
        const int first = static_cast<int>(threadIdx.x) % Table::kLanes * kWidth;
#pragma unroll 1
        for (int pole = Table::first_of_group(); pole < poles; pole += Table::kGroups) {
            const Number v = Table::get(shared.residues[pole]);
            Number fine[kWidth];
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                fine[i] = Table::fine(shared.roots, pole, leaps, first % kRoots + i);
                if (!leaps) fine[i].im = -fine[i].im;
            }
            auto& to = leaps ? shared.tables.far[pole] : shared.tables.near[pole];
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
    __device__ __forceinline__ static void load(Real (&to)[kMine], const Real* from, int stride) {
#pragma unroll
        for (int i = 0; i < kMine; i += kVector) {
            const Vector vector = *reinterpret_cast<const Vector*>(from + i / kVector * stride);
#pragma unroll
            for (int j = 0; j < kVector; ++j) to[i + j] = vector.at[j];
        }
    }
    __device__ __forceinline__ void multiply(int poles) {
#pragma unroll 1
        for (int pole = 0; pole < poles; ++pole)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                Real far[kMine], near[kMine];
                load(far, &shared.tables.far[pole][part][first_row()], kVector);
                load(near, &shared.tables.near[pole][part][column(0)], kConfig.grid * kVector);
#pragma unroll
                for (int a = 0; a < kMine; ++a)
#pragma unroll
                    for (int b = 0; b < kMine; ++b) sums[a][b] += far[a] * near[b];
            }
    }
    // `out`: start of the square; the row has `left` outputs from there on.
    __device__ __forceinline__ void store(Real* out, i64 left) const {
        const int first = first_row() * kConfig.side + column(0);
        Real* const mine = out + first;
        if (left >= kConfig.square() && reinterpret_cast<unsigned long long>(out) % sizeof(Vector) == 0) {
#pragma unroll
            for (int a = 0; a < kMine; ++a)
#pragma unroll
                for (int b = 0; b < kMine; b += kVector) {
                    Vector vector;
#pragma unroll
                    for (int i = 0; i < kVector; ++i) vector.at[i] = 2 * sums[a][b + i];
                    *reinterpret_cast<Vector*>(mine + a * kConfig.side + b * kConfig.grid) = vector;
                }
            return;
        }
        const int mine_left = static_cast<int>(left < kConfig.square() ? left : kConfig.square()) - first;
#pragma unroll
        for (int a = 0; a < kMine; ++a)
#pragma unroll
            for (int b = 0; b < kMine; ++b) {
                const int at = a * kConfig.side + b / kVector * kVector * kConfig.grid + b % kVector;
                if (at < mine_left) mine[at] = 2 * sums[a][b];
            }
    }
};

}  // namespace gdn_cuda::structured
