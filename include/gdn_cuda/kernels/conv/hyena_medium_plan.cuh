// Configuration and shared memory of conv/hyena_medium, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaMediumFewTaps = 128, kHyenaMediumMostTaps = 1024;

struct HyenaMediumConfig {
    DType io;  // x1, x2, v, y
    int taps;  // at most so many

    constexpr bool operator==(const HyenaMediumConfig&) const = default;

    GDN_FIELDS(io, taps)

    GDN_HOST_DEVICE constexpr int blocks() const { return toeplitz_blocks(taps); }
    // bf16 parts of u, and of taps, of which bf16 results do not show what rounding takes.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int tap_parts() const { return io == DType::bf16 ? 1 : parts(); }
    // Of a block, such that its shared memory fits every GPU.
    GDN_HOST_DEVICE constexpr int warps() const { return io == DType::f32 && taps > kHyenaMediumFewTaps ? 2 : 4; }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Pieces of 8 tokens in shared memory: a tile of 64, and those that its first row meets.
    GDN_HOST_DEVICE constexpr int pieces() const { return taps <= kHyenaMediumFewTaps ? 128 : 256; }
};

// Of a warp.
template <HyenaMediumConfig kConfig>
struct HyenaMediumShared {
    static_assert(kConfig.pieces() >= kTilePieces + (kConfig.blocks() - 1) * kRowTokens / 8);
    HyenaStage<kTileTokens> stage;
    TileRing<kConfig.pieces(), kConfig.parts()> ring;
    PairTables<kConfig.blocks(), kConfig.tap_parts()> taps;
};
template <HyenaMediumConfig kConfig>
struct HyenaMediumSharedPlan {
    HyenaMediumShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
