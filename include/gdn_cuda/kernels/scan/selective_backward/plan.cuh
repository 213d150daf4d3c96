// Configuration, shared memory and arguments of scan/selective_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveBackwardConfig {
    Transition transition;
    bool is_complex;
    bool only_varying;  // neither B nor C is constant
    bool is_narrow;     // u, delta and all tensors of their shape have 16 bits; only_varying without is_narrow: they have 32
    int lanes;          // per channel
    int states;         // per lane

    constexpr bool operator==(const SelectiveBackwardConfig&) const = default;
    static constexpr int kWarps = 4, kThreads = 32 * kWarps;
    static constexpr int kTokens = 8;  // per sub-tile, all of whose states are in registers
    // Blocks an SM for which registers are limited; more would spill.
    GDN_HOST_DEVICE constexpr int most_blocks() const { return only_varying && !is_complex && states == 2 ? 4 : 3; }
    GDN_HOST_DEVICE constexpr bool is_wide() const { return only_varying && !is_narrow; }
    GDN_HOST_DEVICE constexpr int channels_per_warp() const { return 32 / lanes; }
    GDN_HOST_DEVICE constexpr int channels_per_block() const { return kWarps * channels_per_warp(); }
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int group() const { return lanes * states; }       // states of a pass
    GDN_HOST_DEVICE constexpr int columns() const { return group() * parts(); }  // floats of these states
    // Buffers for a sub-tile's sums. With one, warps wait longer for each other, but shared memory fits another block.
    GDN_HOST_DEVICE constexpr int buffers() const { return only_varying && columns() <= 16 ? 2 : 1; }

    GDN_FIELDS(transition, is_complex, only_varying, is_narrow, lanes, states)
};

// What a block works on: channels of one group of B and C, and a segment of a sequence, or all of it.
struct BackwardPlace {
    int channel, channels;  // the first channel, and how many of the block's channels exist
    int sequence, batch, segment;
    int length;              // the segment's
    i64 start, first_chunk;  // the segment's first token in the row of the batch, its first chunk
};

template <SelectiveBackwardConfig kConfig>
struct SelectiveBackwardSharedPlan {
    static constexpr int kChannels = kConfig.channels_per_block(), kColumns = kConfig.columns();
    static constexpr int kSubtiles = kStateChunk / SelectiveBackwardConfig::kTokens;
    static constexpr int kCheckpoint =
        kColumns < SelectiveBackwardConfig::kTokens ? SelectiveBackwardConfig::kTokens : kColumns;

    // The tokens of a chunk; groups of four tokens of a row are swizzled (in_row). After the backward pass of a sub-tile,
    // `input`, `cotangent` and `size` hold the gradients of input, step and size, and the first floats of its checkpoints hold
    // Σ C x.
    alignas(16) float step[kChannels][kStateChunk];
    alignas(16) float input[kChannels][kStateChunk];
    alignas(16) float cotangent[kChannels][kStateChunk];  // the gradient of Σ C x
    static constexpr bool kHasSize = has_size(kConfig.transition);
    alignas(16) float size[kHasSize ? kChannels : 1][kHasSize ? kStateChunk : 1];
    alignas(16) float checkpoint[kSubtiles][kChannels][kCheckpoint];  // states before each sub-tile
    // Place of a token's Σ C x in the sub-tile's checkpoint: shifted in odd sub-tiles, as their checkpoints begin in the same
    // banks.
    GDN_HOST_DEVICE static constexpr int place_of_output(int subtile, int token) {
        return kCheckpoint < 16 ? token : (subtile & 1) * 8 + token;
    }
    alignas(16) float B[kStateChunk][kColumns], C[kStateChunk][kColumns];
    static constexpr int kConstant = kConfig.only_varying ? 1 : kChannels;
    alignas(16) float constant_dB[kConstant][kColumns], constant_dC[kConstant][kColumns];  // for each channel
    alignas(16) float D[kChannels], bias[kChannels];
    float element_sums[2][kChannels];  // the gradients of D and of the bias
    float* partial[2];                 // the block's sums for B and C, at the sequence's first token
    BackwardPlace place;               // read where it is used, as registers are short in the recurrence
    // A tensor's address of the block's first channel and token, and its strides in bytes.
    struct alignas(16) Rows {
        char* begin;
        unsigned channel_stride, token_stride;
    } u, delta, grad_out, z, delta_a, du, ddelta, dz, ddelta_a;
    char* coefficients[2];
    // Each channel's gradients of B and C for four tokens: (B or C, token, column). The pitch keeps lanes in different banks.
    static constexpr int kExchangePitch = 8 * kColumns + (kColumns < 32 ? kColumns : 16);
    alignas(16) float exchange[kChannels][kExchangePitch];
    // Gradients of B and C, summed over the channels of a warp.
    alignas(16) float sums[kConfig.buffers()][SelectiveBackwardConfig::kWarps][2][SelectiveBackwardConfig::kTokens][kColumns];
};

struct SelectiveBackwardArgs {
    SelectiveInputs in;
    DType io = DType::f32;
    bool input_times_delta = true;  // false: dirac
    bool along_tokens = true;       // u is contiguous along tokens, otherwise along channels
    // Whether vectors of eight contiguous elements are 16-byte aligned: in all tensors of u's shape; in B and C if they vary.
    // Otherwise elements are read and written one by one.
    bool rows_are_vectors = false, coefficients_are_vectors = false;
    ChannelRows grad_out;
    // (chunks, dim, N); (sequences, dim, N) or null, with several segments without turns (segments, sequences, dim, N): after
    // each segment.
    const void *states = nullptr, *grad_last_state = nullptr;
    ChannelRows du, ddelta, dz, ddelta_a;
    void* dinitial_state = nullptr;
    Segments segments;
    Turns turns;
    // Sums over the tokens of a segment: (segments, sequences, dim, N) and (segments, sequences, dim).
    float *dA = nullptr, *dB_constant = nullptr, *dC_constant = nullptr, *dD = nullptr, *ddelta_bias = nullptr;
    // Sums over the channels of a block: (partials of a group, rows, groups, length, columns); null for constant B or C.
    float *dB = nullptr, *dC = nullptr;
    int partials_B = 1, partials_C = 1, rows = 1, first_row = 0;
    // Passes over groups of states: this pass's first state, and the sums over the states of earlier passes, (4, batch, dim,
    // length).
    int first_state = 0;
    bool first_pass = true, last_pass = true;
    float* earlier = nullptr;
    i64 chunks = 0;
    int first_sequence = 0;
    int channels_per_span =
        0;  // consecutive channels that read the same groups of B and C; a block does not cross its multiples
};

}  // namespace gdn_cuda::scan
