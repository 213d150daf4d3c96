// Configuration and arguments of layers/split_conv and layers/split_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

namespace gdn_cuda::layers {

struct SplitConfig {
    DType io;  // x, q, k and v
    int threads;

    constexpr bool operator==(const SplitConfig&) const = default;

    GDN_FIELDS(io, threads)
};

// Configuration of layers/split_columns, for 4 taps and contiguous channels.
struct SplitColumnsConfig {
    static constexpr int taps = 4;  // as every published GDN layer has

    DType io;
    int lane_channels;  // channels per lane: 4, or 8 for heads that 4 channels of 32 lanes do not hold
    int head_lanes;     // lanes per head of q and k: 32, or 0 if fewer, a run-time value
    bool sequences;     // rows may be packed sequences, and there may be states

    constexpr bool operator==(const SplitColumnsConfig&) const = default;

    GDN_FIELDS(io, lane_channels, head_lanes, sequences)

    GDN_HOST_DEVICE constexpr int threads() const { return 128; }
    // Blocks per SM, limited by registers.
    GDN_HOST_DEVICE constexpr int blocks() const {
        const bool is_wide = lane_channels > 4, is_fp32 = io == DType::f32;
        return is_wide ? (is_fp32 ? 2 : 3) : is_fp32 ? 4 : 5;
    }
    GDN_HOST_DEVICE constexpr bool exists(int, int) const { return true; }         // every tap
    GDN_HOST_DEVICE constexpr int channels() const { return 32 * lane_channels; }  // per warp
    // Rows that a thread has in flight, limited by registers.
    GDN_HOST_DEVICE constexpr int rows() const {
        if (lane_channels > 4) return io == DType::f32 ? 4 : 6;
        return 8;
    }
};
// Channels of a row: key_heads heads of q and of k, with dk channels each, and value_heads heads of v, with dv each.
struct SplitHeads {
    int key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    bool normalised = true;  // q and k
    float epsilon = 0;

    GDN_HOST_DEVICE constexpr int heads() const { return 2 * key_heads + value_heads; }
    GDN_HOST_DEVICE constexpr i64 channels() const { return i64{2} * key_heads * dk + i64{1} * value_heads * dv; }
};

// Position of a head's channels in a row, and of the head in its output: 0, 1, 2 for q, k, v.
struct SplitHead {
    int output, head_index, channel, size;

    GDN_HOST_DEVICE constexpr SplitHead(const SplitHeads& heads, int head)
        : output(head < heads.key_heads       ? 0
                 : head < 2 * heads.key_heads ? 1
                                              : 2),
          head_index(head - output * heads.key_heads),
          channel(output < 2 ? head * heads.dk : 2 * heads.key_heads * heads.dk + head_index * heads.dv),
          size(output < 2 ? heads.dk : heads.dv) {}
    // Offset of the head in its output, contiguous (tokens, heads, size).
    GDN_HOST_DEVICE constexpr i64 offset(const SplitHeads& heads, i64 token) const {
        return (token * (output < 2 ? heads.key_heads : heads.value_heads) + head_index) * size;
    }
    GDN_HOST_DEVICE constexpr bool is_normalised(const SplitHeads& heads) const { return output < 2 && heads.normalised; }
};

// The gates of a layer, one per token and head of v. Separate blocks after those of the convolution compute them.
struct SplitGates {
    static constexpr int per_thread = 8;  // in flight together

    Tagged A_log, dt_bias;
    Scalars a, b;
    void* beta = nullptr;  // contiguous (batch, token, head), of b's dtype
    float* gate = nullptr;
    unsigned first_block = 0;  // without gates, the number of blocks
};

struct SplitArgs {
    conv::CausalArgs conv;
    SplitHeads heads;
    SplitGates gates;
    void* out[3] = {};  // q, k, v, contiguous (batch, token, head, channel)
    // layers/split_columns: whether it also replaces the states, those of rows that are one sequence each.
    bool writes_states = false;

    GDN_HOST_DEVICE constexpr i64 gate_count() const {
        return gates.a.values.data == nullptr ? 0 : i64{conv.batches} * conv.tokens * heads.value_heads;
    }
};

struct SplitBackwardArgs {
    SplitHeads heads;
    conv::CausalTensor y;       // output of the convolution and silu
    const void* grads[3] = {};  // gradients of q, k and v, contiguous
    void* dy = nullptr;         // contiguous (batch, token, channel)
    int batches = 0, tokens = 0;
};

}  // namespace gdn_cuda::layers
