// Configuration, shared memory and arguments of structured/vandermonde_moments, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/vandermonde/plan.cuh>

namespace gdn_cuda::structured {

struct VandermondeMomentsConfig {
    DType io;    // exponents and moments: c64 or c128; the summed values are real
    int orders;  // 1 or 2
    int side;    // a block sums over a square of side x side values
    int tile;    // steps per shared-memory tile

    constexpr bool operator==(const VandermondeMomentsConfig&) const = default;

    GDN_FIELDS(io, orders, side, tile)
    static constexpr int kSums = 32;                                 // complex sums per block: poles times orders
    static constexpr int kLanes = 8, kSumsPerLane = kSums / kLanes;  // lanes per leap, and sums per lane
    // Leaps per thread, whatever the side: a thread uses each power that it reads from shared memory for all its leaps.
    GDN_HOST_DEVICE constexpr int leaps() const { return io == DType::c128 ? 4 : 8; }
    GDN_HOST_DEVICE constexpr int rows() const { return side / leaps(); }  // rows of threads; each takes every rows()-th leap
    GDN_HOST_DEVICE constexpr int threads() const { return rows() * kLanes; }
    GDN_HOST_DEVICE constexpr int square() const { return side * side; }
    GDN_HOST_DEVICE constexpr int poles() const { return kSums / orders; }
    GDN_HOST_DEVICE constexpr int least_blocks() const { return 512 / threads(); }  // per SM: 128 registers per thread
    // Powers are computed as in structured/vandermonde.
    GDN_HOST_DEVICE constexpr VandermondeConfig powers() const {
        return {.io = io, .side = side, .grid = 16, .poles = poles()};
    }
};

template <VandermondeMomentsConfig kConfig>
struct VandermondeMomentsSharedPlan {
    using Config = VandermondeMomentsConfig;
    using Real = typename VandermondeReal<kConfig.io>::Real;
    alignas(16) Real powers[kConfig.side][Config::kSums][2];  // per step b, of every pole: e^(x b), then b e^(x b)
    union {
        alignas(16) Real values[2][kConfig.side][kConfig.tile];  // (leap, step), in vectors of 16 bytes, swizzled by swizzled()
        Real sums[kConfig.rows()][Config::kSums][2];             // after `values` has been read
    };
    VandermondeRoots<kConfig.powers()> roots;
};

struct VandermondeMomentsArgs {
    BroadcastOperand values, exponents;
    void* out = nullptr;  // (squares, orders, leading..., poles), contiguous
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, pole_count = 0;
    i64 rows = 0, steps = 0;
};

}  // namespace gdn_cuda::structured
