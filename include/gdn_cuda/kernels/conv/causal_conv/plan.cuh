// Arguments and configuration shared by the kernels of causal_conv1d, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

inline constexpr int kCausalMostTaps = 32;

// (batch, channel, token) with strides in elements.
struct CausalTensor {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
};

// (sequence or slot, channel, position), oldest position first.
struct CausalStates {
    Tagged values;
    i64 slot = 0, channel = 0, position = 0;
    int positions = 0;  // W - 1 or more; the convolution reads the last W - 1
};

// Which tokens belong to the same sequence, and the states before them.
struct CausalSequenceArgs {
    Tagged cu_seqlens, seq_idx;
    i64 seq_idx_batch = 0, seq_idx_token = 0;
    CausalStates initial;       // no data: zeros
    Tagged slots, has_initial;  // (sequences,)
    i64 slots_sequence = 0, has_initial_sequence = 0;
    i64 null_slot = -1;
    int slot_count = 0, sequences = 0, tokens = 0;
};

// The kernels for few taps, whose threads load vectors.
struct CausalConvConfig {
    DType io;                 // dtype of x and out
    int taps;                 // the most taps: 3 also runs 2, and 8 runs 5 to 8
    bool sequences;           // a row may have several sequences, and there may be states
    bool indices = false;     // seq_idx gives the sequences
    bool from_state = false;  // backward along rows of one sequence: they have an initial state of x's dtype

    constexpr bool operator==(const CausalConvConfig&) const = default;

    GDN_FIELDS(io, taps, sequences, indices, from_state)

    GDN_HOST_DEVICE constexpr int threads() const { return 128; }
    GDN_HOST_DEVICE constexpr int vector() const { return 16 / bytes_of(io); }
    // Whether tap k of `taps` exists when there are `count`. Which taps may be missing is known at compile time.
    GDN_HOST_DEVICE constexpr bool exists(int k, int count) const {
        const int most_missing = taps == 8 ? 3 : taps == 3 ? 1 : 0;
        return k >= most_missing || k >= taps - count;
    }
    // conv/causal_conv: threads of a block, which looks up seq_idx once for all its channels; vectors in flight per thread,
    // tokens per warp.
    GDN_HOST_DEVICE constexpr int row_threads() const { return indices ? 256 : threads(); }
    GDN_HOST_DEVICE constexpr int vectors() const { return 4; }
    GDN_HOST_DEVICE constexpr int warp_tokens() const { return 32 * vectors() * vector(); }
    // conv/causal_conv_channels_last: rows in flight per thread, channels per lane, channels per warp.
    GDN_HOST_DEVICE constexpr int rows() const { return 8; }
    GDN_HOST_DEVICE constexpr int lane_channels() const { return taps == 8 && bytes_of(io) == 4 ? 2 : 4; }
    GDN_HOST_DEVICE constexpr int channels() const { return 32 * lane_channels(); }
    // conv/causal_conv_backward_rows: steps in flight per lane, tokens per warp and step, steps per warp.
    GDN_HOST_DEVICE constexpr int steps_ahead() const { return sequences && taps == 8 ? 2 : 3; }
    GDN_HOST_DEVICE constexpr int step_tokens() const { return 32 * vector(); }
    GDN_HOST_DEVICE constexpr int most_steps() const { return 64; }
    // conv/causal_conv_backward_columns: rows in flight per thread, channels per lane, channels per block, tokens per warp.
    GDN_HOST_DEVICE constexpr int rows_backward() const { return taps == 8 ? 7 : 6; }
    GDN_HOST_DEVICE constexpr int lane_channels_backward() const { return (sequences || taps == 8 ? 4 : 8) / bytes_of(io); }
    GDN_HOST_DEVICE constexpr int channels_backward() const { return 32 * lane_channels_backward(); }
    GDN_HOST_DEVICE constexpr int longest_segment() const { return 256; }
    // Blocks per SM, as many as registers allow without spills.
    GDN_HOST_DEVICE constexpr int row_blocks() const {
        return indices ? (taps == 8 ? 2 : taps == 4 ? 4 : 3) : sequences ? 5 : 8;
    }
    GDN_HOST_DEVICE constexpr int column_blocks() const {
        const bool wide = taps == 8 || bytes_of(io) == 4;
        if (indices) return wide ? 4 : 5;
        return sequences && wide ? 3 : wide ? 4 : sequences ? 5 : 6;
    }
    GDN_HOST_DEVICE constexpr int row_blocks_backward() const {
        if (from_state && taps == 8) return 4;
        return !sequences ? 5 : taps == 4 ? 4 : taps == 3 ? 3 : 2;
    }
    GDN_HOST_DEVICE constexpr int column_blocks_backward() const {
        if (taps == 8) return sequences && !indices ? 2 : 3;
        return lane_channels_backward() == 4 ? 3 : 4;
    }
};

struct CausalArgs {
    CausalTensor x, out;
    Tagged weight, bias;
    i64 weight_channel = 0, weight_tap = 0, bias_channel = 0;
    CausalSequenceArgs sequences;
    int batches = 0, channels = 0, tokens = 0, taps = 0;
    int segment = 0;  // channels-last kernels: tokens per warp
    bool silu = false;
    bool vectors = false;  // rows of x and out are whole 16-byte vectors, aligned to 16 bytes
};

}  // namespace gdn_cuda::conv
