// The part of CUTLASS's header of this name that kernels use, on a CPU: wgmma of 16-bit elements with fp32 accumulators.
#pragma once

#include <cstdint>

#include "mma_sm90_desc.hpp"
#include "wgmma.hpp"

namespace cute {

inline void warpgroup_arrive() {
    emulator::wgmma_fence();
}
inline void warpgroup_commit_batch() {
    emulator::wgmma_commit();
}
template <int kMostInFlight>
void warpgroup_wait() {
    static_assert(kMostInFlight >= 0 && kMostInFlight <= 7);
    emulator::wgmma_wait(kMostInFlight);
}
inline void warpgroup_fence_operand(std::uint32_t&) {}
inline void warpgroup_fence_operand(float&) {}

namespace SM90::GMMA {

enum class Major { K = 0, MN = 1 };
enum class ScaleOut { Zero = 0, One = 1 };
enum class ScaleIn { Neg = -1, One = 1 };

template <int kColumns, bool kIsBf16, Major kMajorA, Major kMajorB, ScaleIn kScaleA, ScaleIn kScaleB>
struct EmulatedWgmma {
    static constexpr emulator::Wgmma kPlain = {.columns = kColumns,
                                               .is_bf16 = kIsBf16,
                                               .a_is_shared = false,
                                               .a_along_k = kMajorA == Major::K,
                                               .b_along_k = kMajorB == Major::K,
                                               .adds = false,
                                               .negates_a = kScaleA == ScaleIn::Neg,
                                               .negates_b = kScaleB == ScaleIn::Neg,
                                               .a = 0,
                                               .b = 0,
                                               .registers = {},
                                               .d = nullptr};

    // CUTLASS takes every accumulator as an argument, then optionally whether to add. Here they must be the elements of one
    // array.
    template <class... D>
    __attribute__((always_inline)) static void issue(emulator::Wgmma& x, D&... d) {
        constexpr int kCount = kColumns / 2;
        static_assert(sizeof...(D) == kCount || sizeof...(D) == kCount + 1);
        const void* const at[] = {&d...};
        x.d = static_cast<float*>(const_cast<void*>(at[0]));
        if (at[kCount - 1] != x.d + kCount - 1) emulator::fail("wgmma: accumulators that are not an array");
        x.adds = sizeof...(D) == kCount || *static_cast<const ScaleOut*>(at[sizeof...(D) - 1]) == ScaleOut::One;
        emulator::wgmma(x);
    }

    struct SS {
        template <class... D>
        __attribute__((always_inline)) static void fma(const std::uint64_t& a, const std::uint64_t& b, D&&... d) {
            emulator::Wgmma x = kPlain;
            x.a_is_shared = true;
            x.a = a;
            x.b = b;
            issue(x, d...);
        }
    };
    struct RS {
        static_assert(kMajorA == Major::K);
        template <class... D>
        __attribute__((always_inline)) static void fma(const std::uint32_t& a0, const std::uint32_t& a1,
                                                       const std::uint32_t& a2, const std::uint32_t& a3, const std::uint64_t& b,
                                                       D&&... d) {
            emulator::Wgmma x = kPlain;
            const std::uint32_t a[4] = {a0, a1, a2, a3};
            for (int i = 0; i < 4; ++i) x.registers[i] = a[i];
            x.b = b;
            issue(x, d...);
        }
    };
};

#define GDN_EMULATED_WGMMA(n)                                                                             \
    template <Major kA, Major kB, ScaleIn kScaleA = ScaleIn::One, ScaleIn kScaleB = ScaleIn::One>         \
    using MMA_64x##n##x16_F32BF16BF16_SS = typename EmulatedWgmma<n, true, kA, kB, kScaleA, kScaleB>::SS; \
    template <Major kA, Major kB, ScaleIn kScaleA = ScaleIn::One, ScaleIn kScaleB = ScaleIn::One>         \
    using MMA_64x##n##x16_F32BF16BF16_RS = typename EmulatedWgmma<n, true, kA, kB, kScaleA, kScaleB>::RS; \
    template <Major kA, Major kB, ScaleIn kScaleA = ScaleIn::One, ScaleIn kScaleB = ScaleIn::One>         \
    using MMA_64x##n##x16_F32F16F16_SS = typename EmulatedWgmma<n, false, kA, kB, kScaleA, kScaleB>::SS;  \
    template <Major kA, Major kB, ScaleIn kScaleA = ScaleIn::One, ScaleIn kScaleB = ScaleIn::One>         \
    using MMA_64x##n##x16_F32F16F16_RS = typename EmulatedWgmma<n, false, kA, kB, kScaleA, kScaleB>::RS
GDN_EMULATED_WGMMA(8);
GDN_EMULATED_WGMMA(16);
GDN_EMULATED_WGMMA(32);
GDN_EMULATED_WGMMA(64);
GDN_EMULATED_WGMMA(96);
GDN_EMULATED_WGMMA(128);
GDN_EMULATED_WGMMA(192);
GDN_EMULATED_WGMMA(256);
#undef GDN_EMULATED_WGMMA

}  // namespace SM90::GMMA
}  // namespace cute
