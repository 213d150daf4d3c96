// Configuration, shared memory and arguments of structured/cauchy, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct CauchyConfig {
    DType io;    // all operands; bf16 and f16 are computed in fp32
    bool conj;   // every pole and residue counts with its conjugate
    int rows;    // rows of residues per block, over the same poles and points
    int points;  // points per thread
    int threads;
    int tile;       // poles per shared-memory tile
    bool one_tile;  // all poles fit in one tile: no sums across tiles

    constexpr bool operator==(const CauchyConfig&) const = default;

    GDN_FIELDS(io, conj, rows, points, threads, tile, one_tile)
    GDN_HOST_DEVICE constexpr bool wide() const { return io == DType::f64 || io == DType::c128; }
    // Whether pairs have a formula without range checks for points off the imaginary axis.
    GDN_HOST_DEVICE constexpr bool pairs_anywhere() const { return conj && io == DType::c64; }
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex(io) ? 2 : 1; }
    // Blocks per SM for __launch_bounds__. Without it ptxas spills a little to fit one more block; with 1 it uses registers
    // freely. S4 uses the c64 configurations.
    GDN_HOST_DEVICE constexpr int least_blocks() const {
        if (io != DType::c64) return 1;
        return rows == 1 ? (one_tile ? 6 : 5) : points == 1 ? 4 : 3;
    }
    GDN_HOST_DEVICE constexpr int points_per_block() const { return threads * points; }
};

template <CauchyConfig kConfig, class Real>
struct CauchySharedPlan {
    // Constants of a conjugate pair's fraction for points on the imaginary axis; a is the pole's distance from the axis.
    struct alignas(4 * sizeof(Real)) Pair {
        Real im, a_squared, four_a_squared;
    };
    struct alignas(4 * sizeof(Real)) PairResidue {
        Real even, odd, even_2a, odd_2a;  // 2 (a Re v - Im v Im w), 2 Re v, and both times 2 a
    };
    // The same for arbitrary points; the square of Im w is in two parts.
    struct alignas(16) PairAnywhere {
        float re, im_squared, residual;
    };
    struct alignas(8) ResidueAnywhere {
        float re, im_product;  // 2 Re v and 2 Im v Im w, scaled
    };
    static constexpr int kRows = kConfig.conj ? kConfig.rows : 1, kPairs = kConfig.conj ? kConfig.tile : 1,
                         kPairsAnywhere = kConfig.pairs_anywhere() ? kConfig.tile : 1;
    union {
        struct {
            Real poles[kConfig.parts()][kConfig.tile];
            Real residues[kConfig.rows][kConfig.parts()][kConfig.tile];
            PairAnywhere pairs_anywhere[kPairsAnywhere];
            ResidueAnywhere residues_anywhere[kRows][kPairsAnywhere];
        };
        struct {
            Pair pairs[kPairs];
            PairResidue pair_residues[kRows][kPairs];
        };
    };
};

struct CauchyArgs {
    BroadcastOperand residues, points, poles;
    void* out = nullptr;  // (leading..., points), contiguous
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, pole_count = 0, point_count = 0;
    int turns = 1;  // tiles of points that a block computes in sequence
    i64 rows = 0;
};

}  // namespace gdn_cuda::structured
