// Configuration, shared memory and arguments of layers/mamba2_decode_layer, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step/tied_plan.cuh>

namespace gdn_cuda::layers {

using scan::TiedStepConfig;

inline constexpr int kMamba2Taps = 4;  // of the convolution

template <TiedStepConfig kConfig>
struct Mamba2LayerSharedPlan {
    scan::TiedStepSharedPlan<kConfig> ring;
    alignas(16) float columns[2 * kConfig.columns];  // B, then C
};

// Strides in elements.
struct Mamba2LayerArgs {
    struct Channels {  // (sequence, channel)
        Tagged values;
        i64 sequence = 0, channel = 0;
    };
    struct Constants {  // (head, d)
        Tagged values;
        i64 head = 0, d = 0;
    };
    Channels xBC;     // x of all heads, then B and C of all groups
    Channels dt;      // `channel`: the head
    Channels z, out;  // z may be absent
    Tagged weight, bias;
    i64 weight_channel = 0, bias_channel = 0;
    int weight_tap = 0;
    Constants A, D, dt_bias;  // D and dt_bias may be absent
    bool silu, softplus;
    float lowest, highest;  // of δ

    int sequences, heads, dim, groups;
    int group_rows;  // heads of a group times dim
    int parts;       // blocks of a group
    int part_rows;   // rows of a block, a multiple of the rows of a step

    struct ConvStates {  // (slots, channel, column)
        Tagged values;
        i64 slot = 0, channel = 0;
        int column = 0;
    } conv;
    int conv_columns;

    void* pool;  // (slots, heads, dim, N), each contiguous
    i64 pool_slot;
    float* scales;  // an int8 pool's: (slots, heads, dim, N / 32), each slot contiguous
    i64 scales_slot;
    Tagged slots;  // (sequences,), of both pools; absent: sequence n has slot n
    i64 slots_sequence, slots_token;
    int slot_count, slot_steps;
    Tagged accepted;  // absent
    i64 null_slot;
};

}  // namespace gdn_cuda::layers
