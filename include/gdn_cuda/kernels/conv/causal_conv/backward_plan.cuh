// Configuration, shared memory and arguments of conv/causal_conv_backward and conv/causal_states_backward, for host and
// device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/tile_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_states_plan.cuh>

namespace gdn_cuda::conv {

struct CausalBackwardArgs {
    CausalArgs forward;  // `out` is dx
    CausalTensor grad;   // gradient of the output
    bool grad_vectors = false;
    CausalStates grad_states;  // gradients of the final states; no data: zeros
    // Sums over a block's tokens: (batch and split, channel, tap) and (batch and split, channel).
    float *dweight = nullptr, *dbias = nullptr;
    int tiles = 0, splits = 0;  // token tiles of a block, and blocks that a row is split among
};

struct CausalStatesBackwardArgs {
    CausalBackwardArgs call;
    CausalStates dinitial;
};

struct CausalBackwardConfig {
    DType io;            // dtype of x and grad
    bool channels_last;  // channels are contiguous in memory, otherwise tokens
    int reach;           // the most taps
    bool sequences;      // a row may have several sequences, and there may be states and gradients of them

    constexpr bool operator==(const CausalBackwardConfig&) const = default;
    GDN_FIELDS(io, channels_last, reach, sequences)

    GDN_HOST_DEVICE constexpr CausalTileConfig tile() const {
        return {.io = io, .channels_last = channels_last, .reach = reach};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return tile().threads(); }
    GDN_HOST_DEVICE constexpr int channels() const { return tile().channels(); }
    GDN_HOST_DEVICE constexpr int tokens() const { return tile().tokens(); }
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const { return sequences ? 2 : bytes_of(io) == 4 ? 3 : 4; }
};

template <CausalBackwardConfig kConfig>
struct CausalBackwardSharedPlan {
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens(), kReach = kConfig.reach;
    // Warps, or threads that share a channel, have partial sums of their own.
    static constexpr int kParts =
        kConfig.channels_last ? kConfig.threads() / kChannels : kTokens / CausalInputs<false, 1, 1>::kRun / 32;

    CausalInputs<kConfig.channels_last, kChannels, kTokens + 2 * kReach> x;
    CausalInputs<kConfig.channels_last, kChannels, kTokens + kReach> dz;  // the gradient of the output, then dz
    float weight[kReach][kChannels];
    float bias[kChannels];
    float dweight[kParts][kReach][kChannels], dbias[kParts][kChannels];
    i64 ids[kTokens + 2 * kReach];  // one for each token of x
};

}  // namespace gdn_cuda::conv
