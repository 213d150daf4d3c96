// Configuration and shared memory of conv/causal_conv_tile, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

namespace gdn_cuda::conv {

struct CausalTileConfig {
    DType io;            // dtype of x and out
    bool channels_last;  // channels are contiguous in memory, otherwise tokens
    int reach;           // the most taps

    constexpr bool operator==(const CausalTileConfig&) const = default;

    GDN_FIELDS(io, channels_last, reach)

    GDN_HOST_DEVICE constexpr int threads() const { return 256; }
    GDN_HOST_DEVICE constexpr int channels() const { return channels_last ? 64 : 8; }  // per block
    GDN_HOST_DEVICE constexpr int tokens() const { return channels_last ? 64 : 512; }
};

// Inputs in fp32: a tile's tokens and those before it.
template <bool kChannelsLast, int kChannels, int kTokens>
struct CausalInputs {
    static constexpr int kRun = 8;  // tokens that a thread computes
    // The lanes of a warp read every eighth token of a channel, or adjacent channels of a token: different banks.
    static constexpr int kPitch = kTokens + kTokens / kRun + 1;

    alignas(16) float at[kChannelsLast ? (kTokens + 1) * kChannels : kChannels * kPitch];

    GDN_HOST_DEVICE static constexpr int place(int channel, int token) {
        return kChannelsLast ? token * kChannels + channel : channel * kPitch + token + token / kRun;
    }
};

template <CausalTileConfig kConfig>
struct CausalTileSharedPlan {
    CausalInputs<kConfig.channels_last, kConfig.channels(), kConfig.tokens() + kConfig.reach> x;
    float weight[kConfig.reach][kConfig.channels()];
    float bias[kConfig.channels()];
    i64 ids[kConfig.tokens() + kConfig.reach];  // one for each token of x
};

}  // namespace gdn_cuda::conv
