// Tensors of the three Hyena operators, for host and device. All computes y = x2 * (filter of u, ...) with u = x1 * v.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

// (batch, channel, token), strides in elements.
struct HyenaTensor {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
};

// (batch, channel, position): a state to begin with.
struct HyenaInitial {
    Tagged numbers;
    i64 batch = 0, channel = 0, position = 0;
};

// (batch, token)
struct HyenaMask {
    Tagged numbers;  // also int32 or int64
    bool is_bool = false;
    i64 batch = 0, token = 0;
};

// (group, tap) of a filter and one number a channel; groups repeat over neighbouring channels.
struct HyenaFilter {
    Tagged weight, bias;  // bias may be absent
    i64 group = 0, tap = 0, bias_channel = 0;
    int taps = 0, channels_a_group = 1;
    bool gated_bias = false;  // the bias is multiplied by u
};

struct HyenaArgs {
    HyenaTensor x1, x2, v, y;
    HyenaFilter filter;
    HyenaMask mask;
    HyenaInitial initial;
    float* last;  // (batch, channel, taps - 1), contiguous: the last values of u
    int batches, channels, tokens;
    int segments, segment_tokens;  // a warp's share of the tokens of a sequence
    bool vectors;                  // in x1, x2, v and y innermost elements are neighbours, and rows begin on 16 bytes
};

// Shared memory of a warp for a tile of tokens that memory does not hold in whole vectors: neighbouring lanes read neighbouring
// tokens, and get their eights from here.
template <int kTokens>
struct alignas(16) HyenaStage {
    float numbers[kTokens];
};

}  // namespace gdn_cuda::conv
