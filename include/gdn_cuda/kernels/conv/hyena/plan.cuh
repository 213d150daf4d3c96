// Tensors of the three Hyena operators, for host and device. They all compute y = x2 * (filter of u, ...) with u = x1 * v.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

// (batch, channel, token), strides in elements.
struct HyenaTensor {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
};

// An initial state (batch, channel, position).
struct HyenaInitial {
    Tagged values;
    i64 batch = 0, channel = 0, position = 0;
};

// (batch, token)
struct HyenaMask {
    Tagged values;  // dtype: any, int32 and int64 included
    bool is_bool = false;
    i64 batch = 0, token = 0;
};

// The taps (group, tap) of a filter and a bias per channel; contiguous channels share a group.
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
    int segments, segment_tokens;  // the segment of a warp
    bool vectors;                  // innermost elements of x1, x2, v and y are contiguous, and rows are aligned to 16 bytes
};

// Shared memory of a warp for a tile that memory does not hold in aligned vectors: adjacent lanes read adjacent tokens, and
// then each reads its eights from here.
template <int kTokens>
struct alignas(16) HyenaStage {
    float values[kTokens];
};

}  // namespace gdn_cuda::conv
