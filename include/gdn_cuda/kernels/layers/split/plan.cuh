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

// Of layers/split_columns, for 4 taps where channels are neighbours in memory.
struct SplitColumnsConfig {
    static constexpr int taps = 4;  // as every published GDN layer has

    DType io;
    int lane_channels;  // 4, or 8 for heads that are too wide for a warp otherwise
    int head_lanes;     // of a head of q and k: 32, or 0 where there are fewer, as arguments say
    bool sequences;     // tokens of a row may be of several, and there may be states

    constexpr bool operator==(const SplitColumnsConfig&) const = default;

    GDN_FIELDS(io, lane_channels, head_lanes, sequences)

    GDN_HOST_DEVICE constexpr int threads() const { return 128; }
    // Blocks of a multiprocessor, as registers allow.
    GDN_HOST_DEVICE constexpr int blocks() const {
        const bool is_wide = lane_channels > 4, is_fp32 = io == DType::f32;
        if (sequences) return is_wide ? 2 : is_fp32 ? 3 : 4;
        return is_wide ? (is_fp32 ? 2 : 3) : is_fp32 ? 4 : 5;
    }
    GDN_HOST_DEVICE constexpr bool exists(int, int) const { return true; }         // every tap
    GDN_HOST_DEVICE constexpr int channels() const { return 32 * lane_channels; }  // of a warp
    // That a thread has in flight, as registers allow.
    GDN_HOST_DEVICE constexpr int rows() const {
        if (lane_channels > 4) return io == DType::f32 ? 4 : 6;
        return 8;
    }
};
// Channels of a row: key_heads of q, as many of k, dk each, and value_heads of v, dv each.
struct SplitHeads {
    int key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    bool normalised = true;  // q and k
    float epsilon = 0;

    GDN_HOST_DEVICE constexpr int heads() const { return 2 * key_heads + value_heads; }
    GDN_HOST_DEVICE constexpr i64 channels() const { return i64{2} * key_heads * dk + i64{1} * value_heads * dv; }
};

// Where a head's channels begin in a row, and its place in a tensor of its kind: q, k or v.
struct SplitHead {
    int kind, of_kind, channel, size;

    GDN_HOST_DEVICE constexpr SplitHead(const SplitHeads& heads, int head)
        : kind(head < heads.key_heads       ? 0
               : head < 2 * heads.key_heads ? 1
                                            : 2),
          of_kind(head - kind * heads.key_heads),
          channel(kind < 2 ? head * heads.dk : 2 * heads.key_heads * heads.dk + of_kind * heads.dv),
          size(kind < 2 ? heads.dk : heads.dv) {}
    // In a contiguous (tokens, heads of the kind, size).
    GDN_HOST_DEVICE constexpr i64 offset(const SplitHeads& heads, i64 token) const {
        return (token * (kind < 2 ? heads.key_heads : heads.value_heads) + of_kind) * size;
    }
    GDN_HOST_DEVICE constexpr bool is_normalised(const SplitHeads& heads) const { return kind < 2 && heads.normalised; }
};

// The gates of a layer, for the heads of v: blocks of their own behind those of the convolution compute them.
struct SplitGates {
    static constexpr int of_thread = 8;  // in flight together

    Tagged A_log, dt_bias;
    Scalars a, b;
    void* beta = nullptr;  // contiguous (batch, token, head), of b's dtype
    float* gate = nullptr;
    unsigned first_block = 0;  // where there are no gates, the number of all blocks
};

struct SplitArgs {
    conv::CausalArgs conv;
    SplitHeads heads;
    SplitGates gates;
    void* out[3] = {};  // q, k, v, contiguous (batch, token, head, channel)

    GDN_HOST_DEVICE constexpr i64 gate_count() const {
        return gates.a.values.data == nullptr ? 0 : i64{conv.batches} * conv.tokens * heads.value_heads;
    }
};

struct SplitBackwardArgs {
    SplitHeads heads;
    conv::CausalTensor y;       // of the convolution and silu
    const void* grads[3] = {};  // of q, k and v, contiguous
    void* of_y = nullptr;       // contiguous (batch, token, channel)
    int batches = 0, tokens = 0;
};

}  // namespace gdn_cuda::layers
