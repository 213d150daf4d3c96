// The part of CUTLASS's header of this name that kernels use, on a CPU: ldmatrix and movmatrix.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace cute {

struct alignas(16) uint128_t {
    std::uint64_t low, high;
};

// Lane 8 i + r passes the address of row r of matrix i. With (g, t) = (lane / 4, lane % 4), a lane gets elements 2 t, 2 t + 1
// of row g, or, transposed, of column g.
template <bool kTransposed>
struct EmulatedLdmatrix {
    static void copy(const uint128_t& row, unsigned& x0, unsigned& x1, unsigned& x2, unsigned& x3) {
        const emulator::Words rows = emulator::sync_warp("ldmatrix", reinterpret_cast<std::uintptr_t>(&row));
        const int g = emulator::lane() / 4, t = emulator::lane() % 4;
        unsigned* const to[] = {&x0, &x1, &x2, &x3};
        for (int matrix = 0; matrix < 4; ++matrix) {
            const auto element = [&](int r, int column) {
                return reinterpret_cast<const unsigned short*>(rows[8 * matrix + r])[column];
            };
            const unsigned low = kTransposed ? element(2 * t, g) : element(g, 2 * t);
            const unsigned high = kTransposed ? element(2 * t + 1, g) : element(g, 2 * t + 1);
            *to[matrix] = high << 16 | low;
        }
        emulator::sync_warp("ldmatrix");
    }
};
using SM75_U32x4_LDSM_N = EmulatedLdmatrix<false>;
using SM75_U16x8_LDSM_T = EmulatedLdmatrix<true>;

struct SM75_U32x1_MOVM_T {
    static void copy(unsigned from, unsigned& to) {
        const emulator::Words& words = emulator::sync_warp("movmatrix", from);
        const int g = emulator::lane() / 4, t = emulator::lane() % 4;
        const auto element = [&](int row, int column) {
            return static_cast<unsigned>(words[4 * row + column / 2] >> (column % 2 * 16)) & 0xffff;
        };
        to = element(2 * t + 1, g) << 16 | element(2 * t, g);
    }
};

}  // namespace cute
