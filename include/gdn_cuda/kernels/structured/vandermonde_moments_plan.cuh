// Configuration, shared memory and arguments of structured/vandermonde_moments, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde_plan.cuh>

namespace gdn_cuda::structured {

struct VandermondeMomentsConfig {
    DType io;    // of exponents and moments, c64 or c128; sums are over real numbers
    int orders;  // 1 or 2
    int side;    // of the square of numbers a block sums over
    int tile;    // steps in shared memory at a time

    constexpr bool operator==(const VandermondeMomentsConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
        visit("orders", orders);
        visit("side", side);
        visit("tile", tile);
    }
    static constexpr int kSums = 32;                                // of a block, complex ones: poles times orders
    static constexpr int kLanes = 8, kSumsOfLane = kSums / kLanes;  // a leap's sums, and what one thread makes of them
    static constexpr int kRows = VandermondeConfig::kRoots;         // of threads: each has every so manieth leap
    GDN_HOST_DEVICE constexpr int threads() const { return kRows * kLanes; }
    GDN_HOST_DEVICE constexpr int square() const { return side * side; }
    GDN_HOST_DEVICE constexpr int poles() const { return kSums / orders; }
    GDN_HOST_DEVICE constexpr int least_blocks() const { return 4; }  // a multiprocessor: 128 registers a thread
    // The powers that a block needs are made as vandermonde makes its own.
    GDN_HOST_DEVICE constexpr VandermondeConfig powers() const {
        return {.io = io, .side = side, .grid = 16, .poles = poles()};
    }
};

template <VandermondeMomentsConfig kConfig>
struct VandermondeMomentsSharedPlan {
    using Config = VandermondeMomentsConfig;
    using Real = typename VandermondeNumbers<kConfig.io>::Real;
    alignas(16) Real powers[kConfig.side][Config::kSums][2];  // of each step b: e^(x b), then b e^(x b), of every pole
    union {
        alignas(16) Real numbers[2][kConfig.side][kConfig.tile];  // (leap, step), pieces of 16 bytes where piece() says
        Real sums[Config::kRows][Config::kSums][2];               // when the rest has been read
    };
    VandermondeRoots<kConfig.powers()> roots;
};

struct VandermondeMomentsArgs {
    Lines numbers, exponents;
    void* out = nullptr;  // (squares, orders, leading..., poles), contiguous
    i64 size[Lines::kMaxLeading] = {};
    int leading = 0, pole_count = 0;
    i64 rows = 0, steps = 0;
};

}  // namespace gdn_cuda::structured
