// Configuration, shared memory and arguments of conv/hyena_medium_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/tap_correlation_plan.cuh>

namespace gdn_cuda::conv {

// Members as in HyenaMediumConfig.
struct HyenaMediumBackwardConfig {
    DType io;
    int taps;
    bool columns;

    constexpr bool operator==(const HyenaMediumBackwardConfig&) const = default;

    GDN_FIELDS(io, taps, columns)

    GDN_HOST_DEVICE constexpr HyenaMediumConfig forward() const { return {.io = io, .taps = taps, .columns = columns}; }
    // Of a block: its neighbouring channels, or such that its shared memory fits every GPU.
    GDN_HOST_DEVICE constexpr int warps() const { return columns ? forward().warps() : forward().few_taps() ? 4 : 2; }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // From which ptxas derives how many registers a thread may have.
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const {
        const int warps_of_sm = io == DType::f32 ? 8 : forward().few_taps() ? 16 : 12;
        return columns ? 1 : warps_of_sm / warps();
    }
};

struct HyenaMediumBackwardArgs {
    HyenaArgs forward;                     // without its outputs; `vectors` also of the tensors below
    HyenaTensor of_y, of_x1, of_x2, of_v;  // gradients
    HyenaInitial of_last;                  // of the state behind the last token, in fp32
    float* of_initial;                     // (batch, channel, taps - 1), contiguous; may be null
    float* of_taps;                        // sums of a share: (batch, segment; channel, tap)
};

// Of a warp. dz is the gradient of z, the sums before the gate.
template <HyenaMediumBackwardConfig kConfig>
struct alignas(128) HyenaMediumBackwardShared {
    static constexpr HyenaMediumConfig kForward = kConfig.forward();
    static constexpr int kScratch = 64 * kCorrelatedPieces;
    static constexpr int kSumsOfDu = 0, kSumsOfZ = kTileTokens;  // in scratch; those of du are taken first
    static_assert(kScratch >= kSumsOfZ + kTileTokens);
    TileRing<kForward.pieces(), kForward.parts()> u, dz;
    alignas(16) float scratch[kScratch];  // as forward's; products of toeplitz/tap_correlation.cuh
    BandTable<kForward.taps, kForward.tap_parts()> taps;
    float of_taps[kForward.taps];
};
template <HyenaMediumBackwardConfig kConfig>
struct HyenaMediumBackwardSharedPlan {
    HyenaMediumBackwardShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
