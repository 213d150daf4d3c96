// The part of CUTLASS's header of this name that kernels use, on a CPU: products of 16-bit elements with fp32 accumulators, and
// of int8 with int32.
#pragma once

#include <type_traits>

#include "mma.hpp"

namespace cute {

using std::conditional_t;

template <emulator::Elements kElements>
struct EmulatedMma16x8x16 {
    static void fma(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                    unsigned b1, float c0, float c1, float c2, float c3) {
        emulator::mma_sync({kElements, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, {&d0, &d1, &d2, &d3}});
    }
};
using SM80_16x8x16_F32BF16BF16F32_TN = EmulatedMma16x8x16<emulator::Elements::bf16>;
using SM80_16x8x16_F32F16F16F32_TN = EmulatedMma16x8x16<emulator::Elements::f16>;

struct SM80_16x8x32_S32S8S8S32_TN {
    static void fma(unsigned& d0, unsigned& d1, unsigned& d2, unsigned& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                    unsigned b0, unsigned b1, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
        emulator::mma_sync_s8({{a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3}, {&d0, &d1, &d2, &d3}});
    }
};

}  // namespace cute
