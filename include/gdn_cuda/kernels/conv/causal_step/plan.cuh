// Configurations, shared memory and arguments of conv/causal_step, conv/causal_step_staged and conv/causal_step_any, for
// host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

inline constexpr int kMaxStepWidth = 32;
inline constexpr int kStepThreads = 128;  // per block
inline constexpr int kStepBlocks = 4;     // blocks that an SM holds at once, at least

// The meaning of a state's columns (docs/conv.md).
enum class StateWindow : int {
    last,      // the last inputs, oldest first; new tokens push out the oldest columns
    circular,  // token n is in column n modulo the number of columns
    verify     // the inputs before a verify's tokens, then all of these tokens, of which only some were accepted
};

// A lane owns the channels of 16 bytes of a state column.
struct CausalStepConfig {
    DType io, state;  // the state's dtype holds every value of x's exactly
    int width;        // W

    constexpr bool operator==(const CausalStepConfig&) const = default;
    GDN_FIELDS(io, state, width)

    GDN_HOST_DEVICE constexpr int vector() const { return 16 / bytes_of(state); }
};

// A lane owns the channels of 16 bytes of x, so it has as many 16-byte units of the state as the state has columns.
struct CausalStepStagedConfig {
    DType io;  // also the state's dtype
    int width, columns;

    constexpr bool operator==(const CausalStepStagedConfig&) const = default;
    GDN_FIELDS(io, width, columns)

    GDN_HOST_DEVICE constexpr int vector() const { return 16 / bytes_of(io); }
};

struct CausalStepAnyConfig {
    int threads;

    constexpr bool operator==(const CausalStepAnyConfig&) const = default;
    GDN_FIELDS(threads)
};

struct alignas(16) StateUnit {
    unsigned char bytes[16];
};

// Two states per warp: of the current sequence and of the next one, in flight.
template <CausalStepStagedConfig kConfig>
struct CausalStepStagedSharedPlan {
    StateUnit units[kStepThreads / 32][2][32 * kConfig.columns];
};

// The last W - 1 inputs of each thread's channel, as a ring.
template <CausalStepAnyConfig kConfig>
struct CausalStepAnySharedPlan {
    float ring[kMaxStepWidth - 1][kConfig.threads];
};

// Strides are in elements. Sequences of a packed batch have stride 0 and start at cu_seqlens.
struct CausalStepArgs {
    struct Rows {
        Tagged values;
        i64 sequence, token, channel;
    };
    struct States {
        Tagged values;
        i64 slot, channel, column;
    };

    Rows x, out;
    States state;
    Tagged weight, bias;
    i64 weight_channel, weight_tap, bias_channel;
    Tagged cu_seqlens, slots, cache_seqlens, accepted;  // per sequence
    i64 slots_sequence;
    i64 slot_count, null_slot;  // null_slot is skipped, as negative slots are; -1: none
    i64 channels;
    int sequences, tokens;  // tokens of each sequence, or of a packed batch
    int columns, width;
    int block_sequences;
    StateWindow window;
    bool silu;
    bool plain;                         // each sequence has one token, and a state of its last W - 1 inputs
    bool weight_vectors, bias_vectors;  // taps and biases are contiguous, in units of a lane's channels
};

}  // namespace gdn_cuda::conv
