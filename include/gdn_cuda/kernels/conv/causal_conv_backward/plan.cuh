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

template <CausalTileConfig kConfig>
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
    i64 ids[kTokens + 2 * kReach];  // of the tokens of x
};

}  // namespace gdn_cuda::conv
