// The part of CUTLASS's header of this name that kernels use, on a CPU: stmatrix.
#pragma once

#include <cstdint>

#include "copy_sm75.hpp"
#include "grid.hpp"

namespace cute {

// Lane 8 i + r gives row r of matrix i; (g, t) = (lane / 4, lane % 4) has elements 2 t and 2 t + 1 of row g, or, transposed, of
// column g.
template <int kMatrices, bool kTransposed>
struct EmulatedStmatrix {
    template <class... More>
    static void store(uint128_t& row, More... matrices) {
        const unsigned pairs[] = {matrices...};
        const emulator::Words rows = emulator::sync_warp("stmatrix", reinterpret_cast<std::uintptr_t>(&row));
        const int g = emulator::lane() / 4, t = emulator::lane() % 4;
        for (int matrix = 0; matrix < kMatrices; ++matrix) {
            const auto row_at = [&](int r) {
                const std::uintptr_t at = rows[8 * matrix + r];
                if (at % sizeof(uint128_t) != 0) emulator::fail("stmatrix: a misaligned address");
                return at;
            };
            if constexpr (kTransposed) {
                for (int i = 0; i < 2; ++i)
                    reinterpret_cast<unsigned short*>(row_at(2 * t + i))[g] =
                        static_cast<unsigned short>(pairs[matrix] >> 16 * i);
            } else {
                reinterpret_cast<unsigned*>(row_at(g))[t] = pairs[matrix];
            }
        }
        emulator::sync_warp("stmatrix");
    }
};
template <bool kTransposed>
struct EmulatedStmatrix1 {
    static void copy(const std::uint32_t& a, uint128_t& row) { EmulatedStmatrix<1, kTransposed>::store(row, a); }
};
template <bool kTransposed>
struct EmulatedStmatrix2 {
    static void copy(const std::uint32_t& a, const std::uint32_t& b, uint128_t& row) {
        EmulatedStmatrix<2, kTransposed>::store(row, a, b);
    }
};
template <bool kTransposed>
struct EmulatedStmatrix4 {
    static void copy(const std::uint32_t& a, const std::uint32_t& b, const std::uint32_t& c, const std::uint32_t& d,
                     uint128_t& row) {
        EmulatedStmatrix<4, kTransposed>::store(row, a, b, c, d);
    }
};
using SM90_U32x1_STSM_N = EmulatedStmatrix1<false>;
using SM90_U32x2_STSM_N = EmulatedStmatrix2<false>;
using SM90_U32x4_STSM_N = EmulatedStmatrix4<false>;
using SM90_U16x2_STSM_T = EmulatedStmatrix1<true>;
using SM90_U16x4_STSM_T = EmulatedStmatrix2<true>;
using SM90_U16x8_STSM_T = EmulatedStmatrix4<true>;

}  // namespace cute
