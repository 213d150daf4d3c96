// Configuration, shared memory and arguments of scan/selective_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveBackwardConfig {
    Transition transition;
    bool is_complex;
    bool only_varying;  // neither B nor C is constant
    bool is_narrow;     // all of u, delta and their likes have 16 bits. Without, but only varying: all have 32
    int lanes;          // of a warp that share a channel
    int states;         // a lane

    constexpr bool operator==(const SelectiveBackwardConfig&) const = default;
    static constexpr int kWarps = 4, kThreads = 32 * kWarps;
    static constexpr int kTokens = 8;      // of a sub-tile, whose states are in registers
    static constexpr int kMostBlocks = 3;  // of a multiprocessor, for which registers are limited: more would spill them
    GDN_HOST_DEVICE constexpr bool is_wide() const { return only_varying && !is_narrow; }
    GDN_HOST_DEVICE constexpr int channels_per_warp() const { return 32 / lanes; }
    GDN_HOST_DEVICE constexpr int channels_per_block() const { return kWarps * channels_per_warp(); }
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int group() const { return lanes * states; }       // states of a pass
    GDN_HOST_DEVICE constexpr int columns() const { return group() * parts(); }  // real numbers of these
    // Of a sub-tile's sums. With one, warps wait more for each other; it leaves shared memory for another block.
    GDN_HOST_DEVICE constexpr int buffers() const { return only_varying && columns() <= 16 ? 2 : 1; }

    GDN_FIELDS(transition, is_complex, only_varying, is_narrow, lanes, states)
};

// The place of a block: channels of one group of B and C, and a piece of a sequence, which may be all of it.
struct BackwardPlace {
    int channel, channels;  // the first, and how many of the block's exist
    int sequence, batch, piece;
    int length;              // of the piece
    i64 start, first_chunk;  // of the piece: its first token in the row of the batch, its first chunk
};

template <SelectiveBackwardConfig kConfig>
struct SelectiveBackwardSharedPlan {
    static constexpr int kChannels = kConfig.channels_per_block(), kColumns = kConfig.columns();
    static constexpr int kSubtiles = kStateChunk / SelectiveBackwardConfig::kTokens;
    static constexpr int kCheckpoint =
        kColumns < SelectiveBackwardConfig::kTokens ? SelectiveBackwardConfig::kTokens : kColumns;

    // Of the tokens of a chunk; in a row, four tokens at a time are swizzled (in_row). Once a sub-tile is done, `input`,
    // `cotangent` and `size` have the gradients of input, step and size, and the first numbers of its checkpoints have Σ C x.
    alignas(16) float step[kChannels][kStateChunk];
    alignas(16) float input[kChannels][kStateChunk];
    alignas(16) float cotangent[kChannels][kStateChunk];  // of Σ C x
    static constexpr bool kHasSize = has_size(kConfig.transition);
    alignas(16) float size[kHasSize ? kChannels : 1][kHasSize ? kStateChunk : 1];
    alignas(16) float checkpoint[kSubtiles][kChannels][kCheckpoint];  // states before each sub-tile
    // Where Σ C x of a token of a sub-tile is: of half the sub-tiles elsewhere, as their checkpoints begin in the same banks.
    GDN_HOST_DEVICE static constexpr int place_of_output(int subtile, int token) {
        return kCheckpoint < 16 ? token : (subtile & 1) * 8 + token;
    }
    alignas(16) float B[kStateChunk][kColumns], C[kStateChunk][kColumns];
    static constexpr int kConstant = kConfig.only_varying ? 1 : kChannels;
    alignas(16) float constant_dB[kConstant][kColumns], constant_dC[kConstant][kColumns];  // of each channel
    alignas(16) float D[kChannels], bias[kChannels];
    float element_sums[2][kChannels];  // the gradients of D and of the bias
    float* partial[2];                 // of the block's sums for B and C: the sequence's first token
    BackwardPlace place;               // read where it is used: in registers it would take them from the walk
    // Where the block's channels and the sequence begin in a tensor, and strides in bytes.
    struct alignas(16) Rows {
        char* begin;
        unsigned of_channel, of_token;
    } u, delta, grad_out, z, delta_a, du, ddelta, dz, ddelta_a;
    char* coefficients[2];
    // Gradients of B and C of four tokens, (B or C, token, column), of each channel; lanes write to different banks.
    static constexpr int kOfChannel = 8 * kColumns + (kColumns < 32 ? kColumns : 16);
    alignas(16) float exchange[kChannels][kOfChannel];
    // Gradients of B and C, summed over the channels of a warp.
    alignas(16) float sums[kConfig.buffers()][SelectiveBackwardConfig::kWarps][2][SelectiveBackwardConfig::kTokens][kColumns];
};

struct SelectiveBackwardArgs {
    SelectiveInputs in;
    DType io = DType::f32;
    bool input_times_delta = true;  // false: dirac
    bool along_tokens = true;       // u is contiguous along tokens, otherwise along channels
    // Eight neighbours of every tensor like u, or of B and C where they vary, are aligned and contiguous in that direction.
    // Otherwise elements are read and written alone.
    bool rows_are_vectors = false, coefficients_are_vectors = false;
    ChannelRows grad_out;
    // (chunks, dim, N), and (sequences, dim, N) or null: (pieces, sequences, dim, N), behind each piece, where there are
    // several.
    const void *states = nullptr, *grad_last_state = nullptr;
    ChannelRows du, ddelta, dz, ddelta_a;
    void* dinitial_state = nullptr;
    Pieces pieces;
    // Sums over the tokens of a piece: (pieces, sequences, dim, N) and (pieces, sequences, dim).
    float *dA = nullptr, *dB_constant = nullptr, *dC_constant = nullptr, *dD = nullptr, *ddelta_bias = nullptr;
    // Sums over the channels of a block: (partials of a group, rows, groups, length, columns); null where constant.
    float *dB = nullptr, *dC = nullptr;
    int partials_B = 1, partials_C = 1, rows = 1, first_row = 0;
    // Of passes over groups of states: the first of this one; sums over the states of earlier ones, (4, batch, dim, length).
    int first_state = 0;
    bool first_pass = true, last_pass = true;
    float* earlier = nullptr;
    i64 chunks = 0;
    int first_sequence = 0;
    int channels_per_span = 0;  // that share a group of B and one of C; blocks do not cross its multiples
};

}  // namespace gdn_cuda::scan
