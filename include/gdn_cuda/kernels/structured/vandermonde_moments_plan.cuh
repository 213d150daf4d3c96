// Configuration, shared memory and arguments of structured/vandermonde_moments, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde_plan.cuh>

namespace gdn_cuda::structured {

struct VandermondeMomentsConfig {
    DType io;    // of exponents and moments, c64 or c128; sums are over real numbers
    int orders;  // 1 or 2
    int side;    // of the square of numbers a block sums over
    int grid;    // of threads, a square too; and as many poles a block
    int tile;    // steps in shared memory at a time

    constexpr bool operator==(const VandermondeMomentsConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
        visit("orders", orders);
        visit("side", side);
        visit("grid", grid);
        visit("tile", tile);
    }
    static constexpr int kPoles = 16;
    GDN_HOST_DEVICE constexpr int threads() const { return grid * grid; }
    GDN_HOST_DEVICE constexpr int square() const { return side * side; }
    // The powers that a block needs are made as vandermonde makes its own.
    GDN_HOST_DEVICE constexpr VandermondeConfig powers() const {
        return {.io = io, .side = side, .grid = grid, .poles = kPoles};
    }
};

template <VandermondeMomentsConfig kConfig, class Real>
struct VandermondeMomentsSharedPlan {
    static constexpr int kPoles = VandermondeMomentsConfig::kPoles;
    Real roots[kPoles][2][kConfig.powers().roots()][2];
    union {
        struct {
            alignas(16)
                Real numbers[kConfig.tile][kConfig.side + 16 / sizeof(Real)];   // (step, leap), and room against bank conflicts
            alignas(16) Real powers[kConfig.tile][kPoles][2 * kConfig.orders];  // e^(x b), and b e^(x b)
        };
        Real sums[kConfig.grid][kPoles][2 * kConfig.orders];  // when the rest has been read
    };
};

struct VandermondeMomentsArgs {
    CauchyOperand numbers, exponents;
    void* out = nullptr;  // (squares, orders, leading..., poles), contiguous
    i64 size[CauchyOperand::kMaxLeading] = {};
    int leading = 0, pole_count = 0;
    i64 rows = 0, steps = 0;
};

}  // namespace gdn_cuda::structured
