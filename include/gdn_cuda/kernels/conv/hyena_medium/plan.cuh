// Configuration and shared memory of conv/hyena_medium, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/plan.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/band_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaMediumFewTaps = 128, kHyenaMediumMostTaps = 1024;

struct HyenaMediumConfig {
    DType io;      // dtype of x1, x2, v, y
    int taps;      // the most taps
    bool columns;  // channels are contiguous in memory, in whole vectors

    constexpr bool operator==(const HyenaMediumConfig&) const = default;

    GDN_FIELDS(io, taps, columns)

    GDN_HOST_DEVICE constexpr bool few_taps() const { return taps <= kHyenaMediumFewTaps; }
    // bf16 parts of u and of taps. With bf16 tensors taps have one part, as their rounding does not show in the results.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int tap_parts() const { return io == DType::bf16 ? 1 : parts(); }
    // Warps per block: its contiguous channels, or as many as leave its shared memory small enough for every GPU.
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, few_taps());
        return io == DType::f32 && !few_taps() ? 2 : 4;
    }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Blocks per SM, from which ptxas derives the registers of a thread.
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const {
        if (columns) return 1;
        return io == DType::f32 ? few_taps() ? 2 : 3 : 4;
    }
    // Tiles of x1, v and x2 that come by way of shared memory.
    GDN_HOST_DEVICE constexpr int stages() const { return columns ? 2 : 0; }
    // Whether a thread keeps its words of the taps in registers: 36 of them.
    GDN_HOST_DEVICE constexpr bool taps_in_registers() const { return columns && few_taps() && io == DType::bf16; }
    // Units of 8 tokens in shared memory: the 64 of a tile, and those before it that its first row needs.
    GDN_HOST_DEVICE constexpr int units() const { return few_taps() ? 128 : 256; }
};

// A warp's shared memory.
template <HyenaMediumConfig kConfig>
struct alignas(128) HyenaMediumShared {
    static_assert(kConfig.units() >= kTileUnits + band_rows(kConfig.taps) * kBandRow / 8);
    TileRing<kConfig.units(), kConfig.parts()> u;
    float scratch[kTileTokens];  // a tile that memory does not hold in whole vectors, or sums that move to other lanes
    BandTable<kConfig.taps, kConfig.tap_parts()> taps;
    HyenaOwnSlots<3 * kConfig.stages(), bytes_of(kConfig.io)> next;  // x1, v and x2 of each stage
};
template <HyenaMediumConfig kConfig>
struct HyenaMediumSharedPlan {
    HyenaMediumShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
