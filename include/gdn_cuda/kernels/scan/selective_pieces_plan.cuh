// Configuration, shared memory and arguments of scan/selective_pieces, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective_plan.cuh>

namespace gdn_cuda::scan {

struct SelectivePiecesConfig {
    Transition transition;
    bool is_complex;
    int states;  // a thread
    int lanes;   // that share a channel

    constexpr bool operator==(const SelectivePiecesConfig&) const = default;
    static constexpr int kThreads = 128;
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * 8 / channels(); }  // of a tile: each thread prepares eight
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }              // states of a block
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor() const { return is_complex ? 3 : 4; }  // registers are limited for

    GDN_FIELDS(transition, is_complex, states, lanes)
};

template <SelectivePiecesConfig kConfig>
struct SelectivePiecesSharedPlan {
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    static constexpr int kPitch = kTokens + 4;  // rows of neighbours begin in different banks, 16 bytes apart
    static constexpr int kRows = has_size(kConfig.transition) ? 3 : 2;

    // The tile's steps, inputs and sizes, and its B, or C in reverse: ones where that is constant.
    alignas(16) float rows[kRows][kChannels * kPitch];
    alignas(16) float coefficients[kConfig.group()][kTokens * kConfig.parts() + 4];
    // What is in flight for a thread: the elements of the next tile, and its B or C.
    static constexpr int kNumbers = kConfig.group() * kConfig.parts() * kTokens;
    static constexpr int kVectors = (kNumbers / 8 + SelectivePiecesConfig::kThreads - 1) / SelectivePiecesConfig::kThreads;
    alignas(16) unsigned in_flight[3 + kVectors][SelectivePiecesConfig::kThreads][8];
    alignas(16) float bias[kChannels];
};

struct SelectivePiecesArgs {
    SelectiveInputs in;
    // What drives the recurrence: u and B; in reverse the gradient of out, z as its gate, and C. No data: none is read.
    ChannelRows source, gate;
    Coefficients coefficients;
    bool reverse = false;
    DType io = DType::f32;
    bool input_times_delta = true;  // forward, but for dirac
    bool along_tokens = true;       // u is contiguous along tokens, otherwise along channels
    // Eight neighbours of source, gate, delta and delta_a, or of `coefficients`, are aligned and contiguous in that direction.
    bool rows_are_vectors = false, coefficients_are_vectors = false;
    int span = 0;    // channels that share a group of B and one of C; blocks do not cross its multiples
    int groups = 1;  // of states, a block each
    Pieces pieces;
    PieceMaps maps;
};

}  // namespace gdn_cuda::scan
