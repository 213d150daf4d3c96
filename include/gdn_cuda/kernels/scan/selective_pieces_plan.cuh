// Configuration, shared memory and arguments of scan/selective_pieces, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectivePiecesConfig {
    Transition transition;
    bool is_complex;
    int states;  // a thread
    int lanes;   // that share a channel

    constexpr bool operator==(const SelectivePiecesConfig&) const = default;
    static constexpr int kThreads = 128;
    static constexpr bool is_narrow = false;  // as in SelectiveForwardConfig
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * 8 / channels(); }  // of a tile: each thread prepares eight
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }              // states of a block
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor() const { return is_complex ? 3 : 4; }  // registers are limited for

    GDN_FIELDS(transition, is_complex, states, lanes)
};

template <SelectivePiecesConfig kConfig>
struct SelectivePiecesSharedPlan {
    static constexpr SelectivePiecesConfig kConfiguration = kConfig;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    static constexpr int kPitch = kTokens + 4, kRowPitch = kTokens * kConfig.parts() + 4;  // as in SelectiveForwardSharedPlan

    // The tile's steps, inputs and sizes, and behind their rows what is in flight of the rows of u, δ and z.
    alignas(16) float rows[3][kChannels * kPitch];
    // B, or C in reverse; ones where that is constant.
    struct Tile {
        alignas(16) float tile[kConfig.group()][kRowPitch];
    } B;
    // What is in flight for a thread, of the next tile: u and u of the one after, z and δ, and B for the first threads.
    static constexpr int kVectorsOfB = kConfig.group() * kConfig.parts() * kTokens / 8;
    static constexpr int kVectors = (kVectorsOfB + SelectivePiecesConfig::kThreads - 1) / SelectivePiecesConfig::kThreads;
    using InFlight = unsigned[SelectivePiecesConfig::kThreads][8];
    alignas(16) InFlight elements_in_flight[4], coefficients_in_flight[kVectors];
    alignas(16) float bias[kChannels];
    SelectivePlace place;
};

struct SelectivePiecesArgs {
    // In reverse the gradient of out is in place of u, and C in place of B.
    SelectiveInputs in;
    Coefficients gain = {};  // in reverse, of rglru: the constant B that its output is multiplied by; no data: none
    bool reverse = false;
    DType io = DType::f32;
    bool input_times_delta = true;  // forward, but for dirac
    bool along_tokens = true;       // u is contiguous along tokens, otherwise along channels
    // Whether eight neighbours of every tensor like u, or of B, from a multiple of eight on are aligned to 16 bytes.
    bool rows_are_aligned = false, coefficients_are_aligned = false;
    int span = 0;    // channels that share a group of B and one of C; blocks do not cross its multiples
    int groups = 1;  // of states, a block each
    Pieces pieces;
    PieceMaps maps = {};
};

}  // namespace gdn_cuda::scan
