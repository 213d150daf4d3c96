// Configuration, shared memory and arguments of scan/selective_forward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveForwardConfig {
    Transition transition;
    bool is_complex;
    bool is_narrow;  // u, delta, z, delta_a, B and C have 16 bits or less, and one pass has all states
    int states;      // per thread
    int lanes;       // per channel

    constexpr bool operator==(const SelectiveForwardConfig&) const = default;
    static constexpr int kThreads = 128;
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * 8 / channels(); }  // per tile: eight elements a thread
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }              // states of a pass over a tile
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    // Blocks an SM for which registers are limited. Below sm_90 an SM lacks the shared memory for five blocks, or for four of
    // complex states.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor(int capability) const {
        if (is_complex) return is_narrow && capability >= 90 ? 4 : 2;
        if (is_narrow) return states == 4 && capability >= 90 ? 5 : 4;
        return states == 4 ? 4 : 3;
    }

    GDN_FIELDS(transition, is_complex, is_narrow, states, lanes)
};

template <SelectiveForwardConfig kConfig>
struct SelectiveForwardSharedPlan {
    static constexpr SelectiveForwardConfig kConfiguration = kConfig;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    // Padding makes consecutive rows begin in different banks. It also receives the last 16-byte vector of an unaligned row
    // (elements.cuh).
    static constexpr int kPitch = kTokens + 4;
    static constexpr int kRowPitch = kTokens * kConfig.parts() + 4;

    // B or C: of every token, or if constant, of every channel.
    union Tile {
        alignas(16) float tile[kConfig.group()][kRowPitch];
        alignas(8) float constant[kChannels][kConfig.group() * kConfig.parts()];
    };

    // Rows of the tile's steps, inputs and sizes, then a row for each lane's Σ C x. With one pass, the sums of the first two
    // lanes overwrite steps and inputs, which the warp has read by then. Sums of a warp's lanes are written without bank
    // conflicts.
    // If complex, pairs of lanes have a row together, so that another block fits an SM.
    static constexpr int kSizes = has_size(kConfig.transition) ? 1 : 0, kFirstSum = kConfig.is_narrow ? 0 : 2 + kSizes;
    static constexpr bool kPairs = kConfig.is_complex && kConfig.is_narrow;
    static constexpr int kSums = kConfig.lanes / (kPairs ? 2 : 1);
    alignas(16) float rows[kFirstSum + kSums][kChannels * kPitch + 8];
    Tile B, C;
    // Per thread, loads in flight: u of this tile and of the next, z of this tile, δ of the next, B and C of the next pass.
    static constexpr int kVectors = 2 * kConfig.group() * kConfig.parts() * kTokens / 8 / SelectiveForwardConfig::kThreads;
    using InFlight = unsigned[SelectiveForwardConfig::kThreads][kConfig.is_narrow ? 4 : 8];
    alignas(16) InFlight elements_in_flight[4], coefficients_in_flight[kVectors];
    // The states before the tile, in configurations where keeping them in registers would cost occupancy.
    static constexpr bool kKeepsStart = !kConfig.is_complex && kConfig.states > 2;
    float start[kKeepsStart ? kConfig.states : 1][kKeepsStart ? SelectiveForwardConfig::kThreads : 1];
    alignas(16) float D[kChannels], bias[kChannels];
    SelectivePlace place;  // read where it is used, as registers are short in the recurrence
};

struct SelectiveForwardArgs {
    SelectiveInputs in;
    ChannelRows out;
    void* last_state = nullptr;  // (sequence, channel, n)
    void* states = nullptr;      // (chunk, channel, n), the state before each chunk; null: not kept
    i64 chunks = 0;              // rows of `states`
    // in.initial_state has a row for each (segment, sequence), and so has `running`, which holds states between passes: it is
    // last_state for one segment, otherwise in.initial_state.
    Segments segments;
    void* running = nullptr;
    DType io = DType::f32;
    bool input_times_delta = true;  // false: dirac
    bool along_tokens = true;       // u and out are contiguous along tokens, otherwise along channels
    // Whether vectors of eight contiguous elements, from multiples of eight on, are 16-byte aligned: in all tensors of u's
    // shape; in B and C.
    bool rows_are_aligned = false, coefficients_are_aligned = false;
    int span = 0;  // consecutive channels that read the same groups of B and C; a block does not cross its multiples
};

}  // namespace gdn_cuda::scan
