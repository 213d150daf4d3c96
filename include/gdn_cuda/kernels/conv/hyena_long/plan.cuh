// Configuration, shared memory and arguments of conv/hyena_long, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/plan.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaGroup = 16, kHyenaMostGroups = 4, kHyenaMostStates = kHyenaGroup * kHyenaMostGroups;

struct HyenaLongConfig {
    DType io;          // dtype of x1, x2, v, y
    int groups;        // groups of 16 states
    bool columns;      // channels are contiguous in memory, in whole vectors
    bool sectors;      // if columns: a block has the channels of a whole 32-byte sector, otherwise of half a sector
    bool only_states;  // computes no outputs, only what every segment adds to the states after it

    constexpr bool operator==(const HyenaLongConfig&) const = default;

    GDN_FIELDS(io, groups, columns, sectors, only_states)

    // bf16 parts of every value.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    // Warps per block: its contiguous channels, or as many as leave its shared memory small enough for every GPU.
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, sectors);
        return io == DType::f32 && groups > 1 ? 2 : 4;
    }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Blocks per SM, from which ptxas derives the registers of a thread.
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const {
        if (columns) return io != DType::f32 && groups == 1 && !sectors ? 2 : 1;
        return io == DType::f32 || groups > 1 ? 2 : 3;
    }
    // Tensors whose next tile is prefetched to shared memory: x1, v and x2.
    GDN_HOST_DEVICE constexpr int slots() const { return !columns ? 0 : only_states ? 2 : 3; }
};

struct HyenaLongArgs {
    HyenaTensor x1, x2, v, y;
    Tagged residues, log_poles, bias;
    i64 residue_row, residue_state, pole_row, pole_state, bias_channel;
    HyenaInitial initial;
    float* last;                 // (batch, channel, state), contiguous
    float* added;                // (batch, channel, segment, state): what segments add, if there are several
    int states, channels_a_row;  // contiguous channels share a row of residues and poles
    int batches, channels, tokens;
    int segments, segment_tokens;
    bool vectors;
    // For a summary: tokens between the last segment and its result. Segments whose states decay to nothing before the result
    // add zeros. −1: not for a summary.
    int until_result = -1;
};

// Decay factors of 16 states of a channel. w = p^32 is the factor over a row of 32 tokens.
struct HyenaDecays {
    alignas(8) float rows[8][kHyenaGroup];     // w^g
    alignas(8) float doubled[3][kHyenaGroup];  // w, w^2, w^4
    alignas(8) float half[kHyenaGroup];        // w^8
    alignas(8) float tile[2][kHyenaGroup];     // w^16, and its rounding error
};
template <int kParts>
struct HyenaPoleGroup : HyenaDecays {
    // Right operands as words of lanes: from the tokens of a row to the states after it, and from the states before a row to
    // its outputs.
    alignas(16) unsigned to_states[kParts][2][32][4];   // [part][eight states][lane][2 k + register]
    alignas(16) unsigned to_outputs[kParts][2][32][4];  // [part][half of the sums][lane][2 (j % 2) + register]
};
// A warp's shared memory.
template <HyenaLongConfig kConfig>
struct HyenaLongShared {
    HyenaPoleGroup<kConfig.parts()> groups[kConfig.groups];
    HyenaStage<kConfig.columns ? kRowTokens : kTileTokens> stage;  // first holds the taps
    PairTables<kConfig.parts()> taps;
    HyenaOwnSlots<kConfig.slots(), bytes_of(kConfig.io)> next;
};
template <HyenaLongConfig kConfig>
struct HyenaLongSharedPlan : HyenaColumnsShared<kConfig.columns ? kConfig.warps() : 0> {
    HyenaLongShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
