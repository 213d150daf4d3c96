// Configuration and shared memory of structured/cauchy_batch, for host and device. Its arguments are structured/cauchy's.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy_plan.cuh>

namespace gdn_cuda::structured {

struct CauchyBatchConfig {
    DType io;  // f32, bf16 or f16

    constexpr bool operator==(const CauchyBatchConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
    }
    static constexpr int kRows = 16;    // of residues
    static constexpr int kSlices = 16;  // of a tile of poles, a warp each
    static constexpr int kPoints = 32;  // a lane each
    static constexpr int kTile = 128;   // poles
    GDN_HOST_DEVICE static constexpr int threads() { return kSlices * kPoints; }
};

struct CauchyBatchSharedPlan {
    using Config = CauchyBatchConfig;
    struct alignas(16) Residues {
        float of_row[Config::kRows + 4];  // eight poles further is the same bank again, for stores of four rows
    };
    struct Tile {
        Residues residues[Config::kTile];
        float poles[Config::kTile];
    };
    union {
        Tile tile;
        float sums[Config::kSlices][Config::kRows][Config::kPoints];
    };
    bool careful[Config::kPoints];
};

}  // namespace gdn_cuda::structured
