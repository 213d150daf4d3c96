// Configuration and shared memory of conv/hyena_medium, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/plan.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/band_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaMediumFewTaps = 128, kHyenaMediumMostTaps = 1024;

struct HyenaMediumConfig {
    DType io;      // x1, x2, v, y
    int taps;      // at most so many
    bool columns;  // channels are neighbours in memory, in whole vectors

    constexpr bool operator==(const HyenaMediumConfig&) const = default;

    GDN_FIELDS(io, taps, columns)

    GDN_HOST_DEVICE constexpr bool few_taps() const { return taps <= kHyenaMediumFewTaps; }
    // bf16 parts of u, and of taps, of which bf16 results do not show what rounding takes.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int tap_parts() const { return io == DType::bf16 ? 1 : parts(); }
    // Of a block: its neighbouring channels, or such that its shared memory fits every GPU.
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, few_taps());
        return io == DType::f32 && !few_taps() ? 2 : 4;
    }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // From which ptxas derives how many registers a thread may have.
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const {
        if (columns) return 1;
        return io == DType::f32 ? few_taps() ? 2 : 3 : 4;
    }
    // Pieces of 8 tokens in shared memory: a tile of 64, and those that its first row meets.
    GDN_HOST_DEVICE constexpr int pieces() const { return few_taps() ? 128 : 256; }
};

// Of a warp.
template <HyenaMediumConfig kConfig>
struct alignas(128) HyenaMediumShared {
    static_assert(kConfig.pieces() >= kTilePieces + band_rows(kConfig.taps) * kBandRow / 8);
    TileRing<kConfig.pieces(), kConfig.parts()> u;
    float scratch[kTileTokens];  // tiles that memory does not hold in whole vectors; sums, on their way to other lanes
    BandTable<kConfig.taps, kConfig.tap_parts()> taps;
};
template <HyenaMediumConfig kConfig>
struct HyenaMediumSharedPlan {
    HyenaMediumShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
