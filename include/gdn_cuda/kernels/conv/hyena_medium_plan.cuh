// Configuration and shared memory of conv/hyena_medium, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaMediumFewTaps = 128, kHyenaMediumMostTaps = 1024;
inline constexpr int kHyenaMediumThreads = 128, kHyenaMediumWarps = kHyenaMediumThreads / 32;

struct HyenaMediumConfig {
    DType io;  // x1, x2, v, y
    int taps;  // at most so many

    constexpr bool operator==(const HyenaMediumConfig&) const = default;

    GDN_FIELDS(io, taps)

    GDN_HOST_DEVICE constexpr int blocks() const { return toeplitz_blocks(taps); }
    // bf16 results do not show what rounding to bf16 takes from taps.
    GDN_HOST_DEVICE constexpr int tap_parts() const { return io == DType::bf16 ? 1 : 2; }
    // Pieces of 8 tokens in shared memory: a tile of 64, and those that its first row meets.
    GDN_HOST_DEVICE constexpr int pieces() const { return taps <= kHyenaMediumFewTaps ? 128 : 256; }
};

// Of a warp.
template <HyenaMediumConfig kConfig>
struct HyenaMediumShared {
    static_assert(kConfig.pieces() >= kTilePieces + (kConfig.blocks() - 1) * kRowTokens / 8);
    HyenaStage<kTileTokens> stage;
    TileRing<kConfig.pieces()> ring;
    PairTables<kConfig.blocks(), kConfig.tap_parts()> taps;
};
template <HyenaMediumConfig kConfig>
struct HyenaMediumSharedPlan {
    HyenaMediumShared<kConfig> warps[kHyenaMediumWarps];
};

}  // namespace gdn_cuda::conv
