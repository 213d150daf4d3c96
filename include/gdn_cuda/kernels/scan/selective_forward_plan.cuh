// Configuration, shared memory and arguments of scan/selective_forward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveForwardConfig {
    Transition transition;
    bool is_complex;
    bool is_narrow;  // no element of u, delta, z, delta_a, B and C is wider than 16 bits, and all states fit one pass
    int states;      // a thread
    int lanes;       // that share a channel

    constexpr bool operator==(const SelectiveForwardConfig&) const = default;
    static constexpr int kThreads = 128;
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * 8 / channels(); }  // of a tile: each thread prepares eight
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }              // states of a pass over a tile
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    // What registers are limited for. Five blocks take more shared memory than a multiprocessor has below sm_90, as do three of
    // complex states.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor(int capability) const {
        if (is_complex) return is_narrow && capability >= 90 ? 3 : 2;
        if (is_narrow) return states == 4 && capability >= 90 ? 5 : 4;
        return states == 4 ? 4 : 3;
    }

    GDN_FIELDS(transition, is_complex, is_narrow, states, lanes)
};

template <SelectiveForwardConfig kConfig>
struct SelectiveForwardSharedPlan {
    static constexpr SelectiveForwardConfig kConfiguration = kConfig;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    // Rows of neighbours begin in different banks, 16 bytes apart. There, behind a row, is what is in flight of a row of a
    // tensor beyond the threads' own vectors, where rows are not aligned.
    static constexpr int kPitch = kTokens + 4;
    static constexpr int kRowPitch = kTokens * kConfig.parts() + 4;

    // B or C: of every token, or of every channel where it is constant.
    union Tile {
        alignas(16) float tile[kConfig.group()][kRowPitch];
        alignas(8) float constant[kChannels][kConfig.group() * kConfig.parts()];
    };

    // The tile's steps, inputs and sizes, and behind them, a row a lane, Σ C x over the states of a thread. With one pass the
    // sums of the first two lanes overwrite steps and inputs, which their warp has read. Four lanes of each of two channels
    // write to different banks.
    static constexpr int kSizes = has_size(kConfig.transition) ? 1 : 0, kFirstSum = kConfig.is_narrow ? 0 : 2 + kSizes;
    alignas(16) float rows[kFirstSum + kConfig.lanes][kChannels * kPitch + 8];
    Tile B, C;
    // What is in flight for a thread: u of this tile and the next one, z of this one, δ of the next one, B and C of the next
    // pass.
    static constexpr int kVectors = 2 * kConfig.group() * kConfig.parts() * kTokens / 8 / SelectiveForwardConfig::kThreads;
    using InFlight = unsigned[SelectiveForwardConfig::kThreads][kConfig.is_narrow ? 4 : 8];
    alignas(16) InFlight elements_in_flight[4], coefficients_in_flight[kVectors];
    // The states before the tile, where they would take registers and so warps.
    static constexpr bool kKeepsStart = !kConfig.is_complex && kConfig.states > 2;
    float start[kKeepsStart ? kConfig.states : 1][kKeepsStart ? SelectiveForwardConfig::kThreads : 1];
    alignas(16) float D[kChannels], bias[kChannels];
    SelectivePlace place;  // read where it is used: in registers it would take them from the walk
};

struct SelectiveForwardArgs {
    SelectiveInputs in;
    ChannelRows out;
    void* last_state = nullptr;  // (sequence, channel, n)
    void* states = nullptr;      // (chunk, channel, n), the state before each chunk; null: not kept
    i64 chunks = 0;              // rows of `states`
    // in.initial_state has a row for each (piece, sequence); so has `running`, which states of several passes are kept in on
    // the way. With one piece it is last_state, otherwise in.initial_state.
    Pieces pieces;
    void* running = nullptr;
    DType io = DType::f32;
    bool input_times_delta = true;  // false: dirac
    bool along_tokens = true;       // u and out are contiguous along tokens, otherwise along channels
    // Whether eight neighbours of every tensor like u, or of B and C, from a multiple of eight on are aligned to 16 bytes.
    bool rows_are_aligned = false, coefficients_are_aligned = false;
    int span = 0;  // channels that share a group of B and one of C; blocks do not cross its multiples
};

}  // namespace gdn_cuda::scan
