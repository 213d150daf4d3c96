// Configuration, shared memory and arguments of structured/vandermonde, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct VandermondeConfig {
    DType io;   // c64 or c128
    int side;   // a block computes a square of outputs, side leaps of side steps
    int grid;   // grid x grid threads
    int poles;  // poles whose powers are computed at a time

    constexpr bool operator==(const VandermondeConfig&) const = default;

    GDN_FIELDS(io, side, grid, poles)
    static constexpr int kRoots =
        16;  // a power is the product of one of kRoots fine roots and one of side / kRoots coarse roots
    GDN_HOST_DEVICE constexpr int threads() const { return grid * grid; }
    GDN_HOST_DEVICE constexpr int roots() const { return kRoots + side / kRoots; }
    GDN_HOST_DEVICE constexpr int square() const { return side * side; }
    // Blocks per SM: one computes its tables while the other multiplies.
    GDN_HOST_DEVICE constexpr int least_blocks() const { return 2; }
};

// The real type of sums.
template <DType kIo>
struct VandermondeReal {
    using Real = float;
};
template <>
struct VandermondeReal<DType::c128> {
    using Real = double;
};

// A pole's exponent in the form of Powers (phase.cuh).
template <class Real>
struct VandermondePole {
    unsigned long long turns;
    Real log2_size, residual;
};

// Per pole: fine roots (0 to kRoots - 1 steps) and coarse roots (multiples of kRoots steps), then the same for leaps. An unused
// entry spreads the poles over the banks.
template <VandermondeConfig kConfig>
struct VandermondeRoots {
    using Real = typename VandermondeReal<kConfig.io>::Real;
    VandermondePole<Real> exponents[kConfig.poles];
    alignas(2 * sizeof(Real)) Real at[2][kConfig.poles][kConfig.roots() | 1][2];
};

// fp64: plain tables.
template <VandermondeConfig kConfig>
struct VandermondeTables {
    alignas(16) double near[kConfig.poles][2][kConfig.side];  // e^(x b), negated imaginary parts
    alignas(16) double far[kConfig.poles][2][kConfig.side];   // v e^(x a side)
};

// fp32: tables of eight poles (or sixteen), double-buffered. Sixteen powers of four poles are an A fragment of mma.m16n8k8, or
// two B fragments: per lane, the real and imaginary parts of two adjacent powers, in the fragment's order.
struct VandermondeFragment {
    static constexpr int kPoles = 4, kPowers = 16;
    struct alignas(16) OfLane {
        unsigned at[4];
    };
    OfLane high[32], residual[32];
};
template <VandermondeConfig kConfig>
    requires(kConfig.io == DType::c64)
struct VandermondeTables<kConfig> {
    using Fragment = VandermondeFragment;
    static constexpr int kPoles = kConfig.side > 32 ? 8 : 16, kSteps = kPoles / Fragment::kPoles,
                         kFragments = kConfig.side / Fragment::kPowers;
    Fragment at[2][2][kSteps][kFragments];  // [buffer][steps, conjugated, or leaps, times v]
};

template <VandermondeConfig kConfig>
struct VandermondeSharedPlan {
    using Real = typename VandermondeReal<kConfig.io>::Real;
    VandermondeTables<kConfig> tables;
    VandermondeRoots<kConfig> roots;
    alignas(2 * sizeof(Real)) Real residues[kConfig.poles][2];
};

struct VandermondeArgs {
    BroadcastOperand residues, exponents;
    void* out = nullptr;  // (leading..., steps), contiguous
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, pole_count = 0;
    i64 rows = 0, steps = 0;
};

}  // namespace gdn_cuda::structured
