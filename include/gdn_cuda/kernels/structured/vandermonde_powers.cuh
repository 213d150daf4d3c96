// The powers that structured/vandermonde and its moments are made of: e^(x_n b) and e^(x_n a T), as products of a few exact
// ones.
#pragma once

#include <gdn_cuda/kernels/common/phase.cuh>
#include <gdn_cuda/kernels/structured/cauchy_common.cuh>
#include <gdn_cuda/kernels/structured/vandermonde_plan.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
struct VandermondePowers {
    using Io = Numbers<kConfig.io>;
    using Real = typename Io::Real;
    using Number = typename Io::Number;
    using Roots = Real[kConfig.poles][2][kConfig.roots()][2];
    static constexpr int kRoots = VandermondeConfig::kRoots;

    __device__ __forceinline__ static Number product(const Number& x, const Number& y) {
        return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
    }
    // Of poles from the first on; by the whole block. Leaps count from `first_leap`.
    __device__ __forceinline__ static void make_roots(Roots& roots, const CauchyOperand& exponents, i64 row, int first_pole,
                                                      int pole_count, i64 first_leap) {
        constexpr int kPowers = 2 * kConfig.roots();
#pragma unroll 1
        for (int i = threadIdx.x; i < kConfig.poles * kPowers; i += kConfig.threads()) {
            const int pole = i / kPowers, leaps = i % kPowers / kConfig.roots(), root = i % kConfig.roots();
            if (first_pole + pole >= pole_count) continue;
            const auto x = Io::template load<double>(exponents.data, row + (first_pole + pole) * exponents.step);
            const bool coarse = root >= kRoots;
            const i64 times = coarse ? (root - kRoots) * kRoots + (leaps ? first_leap : 0) : root;
            Number power;
            Powers<Real>(static_cast<Real>(x.re), x.im)
                .after(static_cast<unsigned long long>(times * (leaps ? kConfig.side : 1)), power.re, power.im);
            roots[pole][leaps][root][0] = power.re;
            roots[pole][leaps][root][1] = power.im;
        }
    }
    // The power of so many steps, or leaps.
    __device__ __forceinline__ static Number power(const Roots& roots, int pole, bool leaps, int times) {
        const auto& fine = roots[pole][leaps][times % kRoots];
        const auto& coarse = roots[pole][leaps][kRoots + times / kRoots];
        return product({fine[0], fine[1]}, {coarse[0], coarse[1]});
    }
};

}  // namespace gdn_cuda::structured
