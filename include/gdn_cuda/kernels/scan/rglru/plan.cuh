// Configuration, shared memory and arguments of scan/rglru and scan/rglru_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::scan {

inline constexpr int kRglruMostStates = 256;

struct RglruConfig {
    DType io;            // u, delta, out and their gradients
    bool channels_last;  // neighbouring channels are neighbours in memory, otherwise tokens are
    bool many_states;    // N > 1
    int tokens;          // a thread's neighbouring tokens: its segment

    constexpr bool operator==(const RglruConfig&) const = default;

    GDN_FIELDS(io, channels_last, many_states, tokens)

    GDN_HOST_DEVICE constexpr int channels() const { return channels_last ? 32 : 1; }  // of a block
    // Tokens of a tile: the same forward and backward, which starts each tile from the state that the forward kept.
    GDN_HOST_DEVICE constexpr int tile() const { return !channels_last ? 2048 : many_states ? 64 : 128; }
    GDN_HOST_DEVICE constexpr int threads() const { return tile() / tokens * channels(); }
    GDN_HOST_DEVICE constexpr int warps() const { return threads() / 32; }
};

// (batch, channel, token) with strides in elements.
struct RglruTensor {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
    bool vectors = false;  // tokens are neighbours, and rows begin on 16 bytes
};

// (batch or sequence, channel, state), fp32.
struct RglruStates {
    float* data = nullptr;
    i64 sequence = 0, channel = 0, state = 0;
};

struct RglruArgs {
    RglruTensor u, delta, out;
    RglruStates A, initial, last;  // A has no sequences
    float* checkpoints;            // (batch, tile, state, channel): the state before each tile
    Tagged cu_seqlens, reset;
    i64 reset_batch, reset_token;
    int batches, channels, states, tokens, sequences, tiles;
    bool first_multiplier;
};

struct RglruBackwardArgs {
    RglruArgs forward;                 // without `out`, `last`
    RglruTensor grad, of_u, of_delta;  // the gradient of the output, and those that are computed
    RglruStates grad_last, of_initial;
    float* of_log_A;  // (batch, channel, state, warp): sums over a warp's tokens, of which the caller adds up warps and batches
    float least_root;  // the root is at least this in its own derivative, if above 0
};

// ---- Shared memory

// The map of a segment or warp: state -> whole * state + rest * state + added; whole is 1 for decays near one, otherwise 0.
struct RglruStep {
    float whole, rest, added;
};
// A state that is carried over tiles, with what rounding took from it: long memories gather a little in very many tiles.
struct RglruState {
    float value, low;
};
// Of segments (channels last) or of warps; by turns, so that one barrier per scan is enough.
template <RglruConfig kConfig>
struct RglruSteps {
    RglruStep at[2][kConfig.warps()][kConfig.channels()];
};
template <RglruConfig kConfig>
struct RglruMarks {
    unsigned resets[kConfig.tile() / 32];  // a bit per token
    int starts[kConfig.tile()];            // 1 + the sequence that begins at the token, or 0
};
// A number for each token that begins a sequence, of the state in turn. A token's own thread writes and reads it.
template <RglruConfig kConfig>
struct RglruEnds {
    float at[kConfig.tile()][kConfig.channels()];
};
// What is carried from tile to tile, where registers do not hold it.
template <RglruConfig kConfig>
struct RglruCarry {
    RglruState at[kConfig.many_states ? kRglruMostStates : 1][kConfig.channels()];
};

template <RglruConfig kConfig>
struct RglruSharedPlan {
    RglruSteps<kConfig> steps;
    RglruMarks<kConfig> marks;
    RglruEnds<kConfig> ends;  // the initial state, then the last one of the sequence before
    RglruCarry<kConfig> carry;
};
template <RglruConfig kConfig>
struct RglruBackwardSharedPlan {
    RglruSteps<kConfig> forward, reverse;
    RglruMarks<kConfig> marks;
    RglruEnds<kConfig> initial;
    RglruEnds<kConfig> grads;  // of the last state of the sequence before, then of the initial state
    RglruCarry<kConfig> carry;
};

}  // namespace gdn_cuda::scan
