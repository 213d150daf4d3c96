// Configuration, shared memory and arguments of conv/hyena_medium_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/tap_correlation_plan.cuh>

namespace gdn_cuda::conv {

// Fields as in HyenaMediumConfig.
struct HyenaMediumBackwardConfig {
    DType io;
    int taps;
    bool columns;

    constexpr bool operator==(const HyenaMediumBackwardConfig&) const = default;

    GDN_FIELDS(io, taps, columns)

    GDN_HOST_DEVICE constexpr HyenaMediumConfig forward() const { return {.io = io, .taps = taps, .columns = columns}; }
    // Warps per block: its contiguous channels, or as many as leave its shared memory small enough for every GPU.
    GDN_HOST_DEVICE constexpr int warps() const { return columns ? forward().warps() : forward().few_taps() ? 4 : 2; }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Blocks per SM, from which ptxas derives the registers of a thread.
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const {
        const int warps_of_sm = io == DType::f32 ? 8 : forward().few_taps() ? 16 : 12;
        return columns ? 1 : warps_of_sm / warps();
    }
};

struct HyenaMediumBackwardArgs {
    HyenaArgs forward;             // without its outputs; `vectors` also covers the tensors below
    HyenaTensor dy, dx1, dx2, dv;  // gradients
    HyenaInitial grad_state;       // gradient of the final state, in fp32
    float* dinitial;               // (batch, channel, taps - 1), contiguous; may be null
    float* dtaps;                  // sums of a segment (batch, segment; channel, tap)
};

// A warp's shared memory. dz is the gradient of z, the sums before the gate.
template <HyenaMediumBackwardConfig kConfig>
struct alignas(128) HyenaMediumBackwardShared {
    static constexpr HyenaMediumConfig kForward = kConfig.forward();
    static constexpr int kScratch = 64 * kCorrelatedUnits;
    static constexpr int kSumsOfDu = 0, kSumsOfZ = kTileTokens;  // offsets in `scratch`; the sums of du are read first
    static_assert(kScratch >= kSumsOfZ + kTileTokens);
    TileRing<kForward.units(), kForward.parts()> u, dz;
    alignas(16) float scratch[kScratch];  // as in the forward kernel; also the products of toeplitz/tap_correlation.cuh
    BandTable<kForward.taps, kForward.tap_parts()> taps;
    float dtaps[kForward.taps];
};
template <HyenaMediumBackwardConfig kConfig>
struct HyenaMediumBackwardSharedPlan {
    HyenaMediumBackwardShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
