// Configuration, shared memory and arguments of conv/causal_conv_backward and conv/causal_states_backward, for host and
// device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/tile_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_states_plan.cuh>

namespace gdn_cuda::conv {

struct CausalBackwardArgs {
    CausalArgs forward;  // `out` is the gradient of x
    CausalTensor grad;   // of the output
    bool grad_vectors = false;
    CausalStates grad_behind;  // of the states behind the last tokens; without data: zeros
    // Sums over a block's tokens: (batch and cut, channel, tap) and (batch and cut, channel).
    float *of_weight = nullptr, *of_bias = nullptr;
    int tiles = 0, cuts = 0;  // token tiles of a block, and blocks that share a row's tokens
};

struct CausalStatesBackwardArgs {
    CausalBackwardArgs call;
    CausalStates of_initial;
};

template <CausalTileConfig kConfig>
struct CausalBackwardSharedPlan {
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens(), kReach = kConfig.reach;
    // Threads that share a channel, or warps, have sums of their own.
    static constexpr int kParts =
        kConfig.channels_last ? kConfig.threads() / kChannels : kTokens / CausalInputs<false, 1, 1>::kRun / 32;

    CausalInputs<kConfig.channels_last, kChannels, kTokens + 2 * kReach> x;
    CausalInputs<kConfig.channels_last, kChannels, kTokens + kReach> dz;  // the gradient of the output, then of its sum
    float weight[kReach][kChannels];
    float bias[kChannels];
    float of_weight[kParts][kReach][kChannels], of_bias[kParts][kChannels];
    i64 ids[kTokens + 2 * kReach];  // of the tokens of x
};

}  // namespace gdn_cuda::conv
