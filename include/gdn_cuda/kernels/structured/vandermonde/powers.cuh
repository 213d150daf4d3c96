// The powers of structured/vandermonde and structured/vandermonde_moments: e^(x_n b) and e^(x_n a T), as products of a few
// exact powers. Eight lanes compute the powers of a pole.
#pragma once

#include <gdn_cuda/kernels/common/phase.cuh>
#include <gdn_cuda/kernels/structured/common.cuh>
#include <gdn_cuda/kernels/structured/vandermonde/plan.cuh>

namespace gdn_cuda::structured {

// Elements for one vector access.
template <class Real, int kCount>
struct alignas(kCount * sizeof(Real)) Pack {
    Real at[kCount];
};

template <VandermondeConfig kConfig, int kThreads = kConfig.threads()>
struct VandermondePowers {
    using Io = ElementType<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    using Roots = VandermondeRoots<kConfig>;
    static constexpr int kRoots = VandermondeConfig::kRoots, kCoarse = kConfig.side / kRoots;
    static constexpr int kLanes = 8,
                         kGroups =
                             kThreads / 2 / kLanes;  // groups of lanes for powers of steps, and as many for powers of leaps

    __device__ __forceinline__ static Number product(const Number& x, const Number& y) {
        return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
    }
    // Whether this thread computes powers of leaps (else of steps), and the first pole of its group of lanes.
    __device__ __forceinline__ static bool makes_leaps() { return threadIdx.x >= kThreads / 2; }
    __device__ __forceinline__ static int first_of_group() { return static_cast<int>(threadIdx.x) % (kThreads / 2) / kLanes; }

    // Called by the first threads of a block: loads exponents; 0 past the last pole.
    __device__ __forceinline__ static void load_exponents(Roots& roots, const BroadcastOperand& exponents, i64 row,
                                                          int first_pole, int pole_count) {
        const auto pole = static_cast<int>(opaque(threadIdx.x));
        Complex<double> x{};
        if (first_pole + pole < pole_count)
            x = Io::template load<double>(exponents.data, row + (first_pole + pole) * exponents.step);
        const auto powers = Powers<Real>::of(x.re, x.im);
        roots.exponents[pole] = {powers.turns.fraction, powers.log2_size, powers.residual};
    }
    // Computes the roots of the first `poles`, after load_exponents() and a barrier. Leaps count from `first_leap`.
    __device__ __forceinline__ static void make_roots(Roots& roots, int poles, i64 first_leap) {
        const bool leaps = makes_leaps();
        const unsigned long long step = leaps ? kConfig.side : 1, first = leaps ? first_leap : 0;
        constexpr int kAtOnce = sizeof(Real) == sizeof(float) ? 3 : 2;
        const unsigned thread = opaque(threadIdx.x);
        const int lane = static_cast<int>(thread % kLanes);
#pragma unroll 1
        for (int pole = static_cast<int>(thread % (kThreads / 2) / kLanes); pole < poles; pole += kGroups) {
            const VandermondePole<Real> exponent = roots.exponents[pole];
            const Powers<Real> powers{{exponent.turns}, exponent.log2_size, exponent.residual};
            auto& to = roots.at[leaps][pole];
#pragma unroll kAtOnce
            for (int round = 0; round < (kConfig.roots() + kLanes - 1) / kLanes; ++round) {
                const int root = round * kLanes + lane, coarse = root - kRoots;
                if (root >= kConfig.roots()) continue;
                Number power;
                powers.after((round * kLanes < kRoots ? root : first + coarse * kRoots) * step, power.re, power.im);
                put(to[root], power);
            }
        }
    }
    __device__ __forceinline__ static Number fine(const Roots& roots, int pole, bool leaps, int times) {
        return get(roots.at[leaps][pole][times]);
    }
    __device__ __forceinline__ static Number coarse(const Roots& roots, int pole, bool leaps, int times) {
        return get(roots.at[leaps][pole][kRoots + times]);
    }
    __device__ __forceinline__ static Number get(const Real (&from)[2]) {
        const auto pair = *reinterpret_cast<const Pack<Real, 2>*>(from);
        return {pair.at[0], pair.at[1]};
    }
    __device__ __forceinline__ static void put(Real (&to)[2], const Number& x) {
        *reinterpret_cast<Pack<Real, 2>*>(to) = {{x.re, x.im}};
    }
};

// The products of structured/vandermonde, one specialization per precision.
template <VandermondeConfig kConfig>
struct VandermondeProducts;

}  // namespace gdn_cuda::structured
