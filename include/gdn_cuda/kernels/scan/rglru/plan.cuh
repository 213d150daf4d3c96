// Configuration, shared memory and arguments of scan/rglru and scan/rglru_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::scan {

inline constexpr int kRglruMostStates = 256;

struct RglruConfig {
    DType io;            // u, delta, out and their gradients
    bool channels_last;  // channels are contiguous in memory; otherwise tokens
    bool many_states;    // N > 1
    int tokens;          // tokens of a thread's segment

    constexpr bool operator==(const RglruConfig&) const = default;

    GDN_FIELDS(io, channels_last, many_states, tokens)

    GDN_HOST_DEVICE constexpr int channels() const { return channels_last ? 32 : 1; }  // per block
    // Tokens of a tile; the same in backward, which starts each tile from the state that forward stored.
    GDN_HOST_DEVICE constexpr int tile() const { return !channels_last ? 2048 : many_states ? 64 : 128; }
    GDN_HOST_DEVICE constexpr int threads() const { return tile() / tokens * channels(); }
    GDN_HOST_DEVICE constexpr int warps() const { return threads() / 32; }
};

// (batch, channel, token) with strides in elements.
struct RglruTensor {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
    bool vectors = false;  // tokens are contiguous, and rows are 16-byte aligned
};

// (batch or sequence, channel, state), fp32.
struct RglruStates {
    float* data = nullptr;
    i64 sequence = 0, channel = 0, state = 0;
};

struct RglruArgs {
    RglruTensor u, delta, out;
    RglruStates A, initial, last;  // A has no sequence stride
    float* checkpoints;            // (batch, tile, state, channel): the states before each tile
    Tagged cu_seqlens, reset;
    i64 reset_batch, reset_token;
    int batches, channels, states, tokens, sequences, tiles;
    bool first_multiplier;
};

struct RglruBackwardArgs {
    RglruArgs forward;             // `out` and `last` are not set
    RglruTensor grad, du, ddelta;  // grad: the gradient of the output
    RglruStates grad_last, dinitial;
    float* dlog_A;     // (batch, channel, state, warp): sums over a warp's tokens; the caller adds up warps and batches
    float least_root;  // lower bound of the root in its derivative, if above 0
};

// ---- Shared memory

// The map of a segment or warp: state -> whole * state + rest * state + added; whole is 1 for decays near one, 0 for others.
struct RglruStep {
    float whole, rest, added;
};
// A state carried over tiles, and its rounding error: over very many tiles the errors of slowly decaying states would add up.
struct RglruState {
    float value, low;
};
// The maps of segments (channels last) or of warps; two buffers, so that one barrier per scan is enough.
template <RglruConfig kConfig>
struct RglruSteps {
    RglruStep at[2][kConfig.warps()][kConfig.channels()];
};
template <RglruConfig kConfig>
struct RglruMarks {
    unsigned resets[kConfig.tile() / 32];  // a bit per token: resets
    int starts[kConfig.tile()];            // 1 + the sequence that begins at the token, or 0
};
// A value for each token that begins a sequence, for the state being computed; written and read by the token's own thread.
template <RglruConfig kConfig>
struct RglruEnds {
    float at[kConfig.tile()][kConfig.channels()];
};
// The carried states, if there are more than registers hold.
template <RglruConfig kConfig>
struct RglruCarry {
    RglruState at[kConfig.many_states ? kRglruMostStates : 1][kConfig.channels()];
};

template <RglruConfig kConfig>
struct RglruSharedPlan {
    RglruSteps<kConfig> steps;
    RglruMarks<kConfig> marks;
    RglruEnds<kConfig> ends;  // the initial state, then the last state of the sequence before
    RglruCarry<kConfig> carry;
};
template <RglruConfig kConfig>
struct RglruBackwardSharedPlan {
    RglruSteps<kConfig> forward, reverse;
    RglruMarks<kConfig> marks;
    RglruEnds<kConfig> initial;
    RglruEnds<kConfig> grads;  // the gradient of the last state of the sequence before, then of the initial state
    RglruCarry<kConfig> carry;
};

}  // namespace gdn_cuda::scan
