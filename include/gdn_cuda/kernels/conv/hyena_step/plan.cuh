// Configurations and arguments of conv/hyena_fir_step, conv/hyena_fir_step_staged and conv/hyena_modal_step, for host and
// device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaStepThreads = 128;

// A row is a channel of a sequence. It has `lanes` adjacent lanes of a warp, each with `elements` values of its state.
struct HyenaFirStepConfig {
    int lanes, elements;

    constexpr bool operator==(const HyenaFirStepConfig&) const = default;
    GDN_FIELDS(lanes, elements)

    GDN_HOST_DEVICE constexpr int most_taps() const { return lanes * elements + 1; }
    GDN_HOST_DEVICE constexpr int rows() const { return kHyenaStepThreads / lanes; }  // per block
};

// A warp has `rows` contiguous channels of a sequence, with 1 or 32 lanes each. A lane multiplies up to `elements` values of
// a row, of which the first `certain` exist in every row that has this configuration.
struct HyenaFirStagedConfig {
    DType io;  // dtype of u and out
    int lanes, elements, certain, rows;

    constexpr bool operator==(const HyenaFirStagedConfig&) const = default;
    GDN_FIELDS(io, lanes, elements, certain, rows)

    GDN_HOST_DEVICE constexpr int most_taps() const { return lanes * elements + 1; }
    GDN_HOST_DEVICE constexpr int sums() const { return rows * lanes / 32; }  // rows that a lane computes sums for
    GDN_HOST_DEVICE constexpr int block_rows() const { return rows * kHyenaStepThreads / 32; }
    GDN_HOST_DEVICE constexpr int units() const;  // 16-byte units of a warp's rows
    // Blocks per SM: a lane's taps are in registers.
    GDN_HOST_DEVICE constexpr int blocks() const { return sums() * elements < 16 ? 8 : 6; }
};

struct alignas(16) HyenaStateUnit {
    static constexpr int kValues = 4;
    float values[kValues];
};
GDN_HOST_DEVICE constexpr int HyenaFirStagedConfig::units() const {
    return rows * lanes * elements / HyenaStateUnit::kValues;
}

// The rows of two sequences per warp, the current one and the next one, which is in flight; each is followed by a unit for
// its tokens.
template <HyenaFirStagedConfig kConfig>
struct HyenaFirStagedSharedPlan {
    HyenaStateUnit runs[kHyenaStepThreads / 32][2][kConfig.units() + 1];
};

struct HyenaModalStepConfig {
    // States, residues and poles are fp32, loaded 16 bytes at a time, and tokens are of dtype `io`; otherwise dtypes are
    // known at run time only.
    bool vectors;
    DType io;
    int lanes;

    constexpr bool operator==(const HyenaModalStepConfig&) const = default;
    GDN_FIELDS(vectors, io, lanes)

    GDN_HOST_DEVICE static constexpr int elements() { return 4; }
    GDN_HOST_DEVICE constexpr int most_states() const { return lanes * elements(); }
    GDN_HOST_DEVICE constexpr int rows() const { return kHyenaStepThreads / lanes; }
    GDN_HOST_DEVICE constexpr int blocks() const { return vectors ? 8 : 7; }  // per SM
};

// A tensor (sequences, channels, tokens); strides in elements.
struct HyenaTokens {
    Tagged values;
    i64 sequence = 0, channel = 0, token = 0;
};

// Shared by both steps: rows, and states (slots, channels, positions) in slots of a pool.
struct HyenaStepArgs {
    i64 sequences;
    int block_sequences;  // that a block processes one after the other
    int channels, tokens;
    int group_channels;  // channels that segment the parameters of a group
    void* states;
    DType state_type;
    i64 state_slot, state_channel, state_position;  // strides
    Tagged slots;                                   // (sequences,); absent: sequence n has slot n
    i64 slot_count, null_slot;                      // null_slot skips its sequence, as negative slots do; -1: none
};

struct HyenaFirStepArgs : HyenaStepArgs {
    HyenaTokens u, out;
    int width;  // values in a state: one less than taps
    Tagged weight, bias;
    i64 weight_group, weight_tap, bias_channel;  // strides
    bool flipped;                                // the first tap multiplies the current token
    bool gated_bias;
};

struct HyenaModalStepArgs : HyenaStepArgs {
    HyenaTokens x2, x1, v, out;
    int count;  // states per channel
    Tagged residues, log_poles, D;
    i64 residues_group, residues_state, log_poles_group, log_poles_state, D_channel;  // strides
};

}  // namespace gdn_cuda::conv
