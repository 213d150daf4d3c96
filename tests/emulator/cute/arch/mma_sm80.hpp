// What kernels use of CUTLASS's header of this name, on a CPU: products of 16-bit elements with fp32 accumulators.
#pragma once

#include <math.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "grid.hpp"

namespace cute {

using std::conditional_t;

// d (16 x 8) = a (16 x 16) b (16 x 8) + c, where `kNumber` makes a float of a 16-bit element. Products are exact, and summed up
// in fp64. All lanes say their fragments (common/mma.cuh says which elements these are) and each computes its own sums.
template <auto kNumber>
struct EmulatedMma16x8x16 {
    static void fma(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                    unsigned b1, float c0, float c1, float c2, float c3) {
        const auto said = [](unsigned low, unsigned high) {
            return emulator::meet_warp("mma.sync", std::uint64_t{high} << 32 | low);
        };
        const emulator::Words upper = said(a0, a2), lower = said(a1, a3), right = said(b0, b1);
        const int g = emulator::lane() / 4, t = emulator::lane() % 4;
        // Element k of a fragment row or column whose four lanes begin at `first`.
        const auto element = [](const emulator::Words& words, int first, int k) {
            return kNumber(static_cast<unsigned short>(words[first + k % 8 / 2] >> (k / 8 * 32 + k % 2 * 16)));
        };
        const auto sum = [&](const emulator::Words& left, int column, float c) {
            double total = c;
            for (int k = 0; k < 16; ++k) total += double{element(left, 4 * g, k)} * element(right, 4 * column, k);
            return static_cast<float>(total);
        };
        d0 = sum(upper, 2 * t, c0);
        d1 = sum(upper, 2 * t + 1, c1);
        d2 = sum(lower, 2 * t, c2);
        d3 = sum(lower, 2 * t + 1, c3);
    }
};
using SM80_16x8x16_F32BF16BF16F32_TN = EmulatedMma16x8x16<[](unsigned short x) { return __bfloat162float(__nv_bfloat16{x}); }>;
using SM80_16x8x16_F32F16F16F32_TN = EmulatedMma16x8x16<[](unsigned short x) { return __half2float(__ushort_as_half(x)); }>;

}  // namespace cute
