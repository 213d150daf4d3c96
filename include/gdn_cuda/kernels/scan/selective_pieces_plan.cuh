// Configuration, shared memory and arguments of scan/selective_pieces, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectivePiecesConfig {
    Transition transition;
    bool is_complex;
    int states;               // per thread
    int lanes;                // per channel
    bool is_summary = false;  // for scan/selective_summary: all segments have maps, those nearest to the result first

    constexpr bool operator==(const SelectivePiecesConfig&) const = default;
    static constexpr int kThreads = 128;
    static constexpr bool is_narrow = false;  // as in SelectiveForwardConfig
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * 8 / channels(); }  // per tile: eight elements a thread
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }              // states of a block
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }
    // Whether segments are skipped that have no part in the result: where decays are exponentials of sums of steps.
    GDN_HOST_DEVICE constexpr bool skips() const {
        return is_summary && (transition == Transition::exponential || transition == Transition::zoh);
    }
    // For which registers are limited. Where few warps of a block have work, more blocks run at once.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor() const {
        return is_complex ? 3 : skips() && transition == Transition::exponential ? 6 : 4;
    }

    GDN_FIELDS(transition, is_complex, states, lanes, is_summary)
};

template <SelectivePiecesConfig kConfig>
struct SelectivePiecesSharedPlan {
    static constexpr SelectivePiecesConfig kConfiguration = kConfig;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    static constexpr int kPitch = kTokens + 4, kRowPitch = kTokens * kConfig.parts() + 4;  // as in SelectiveForwardSharedPlan

    // Rows of the tile's steps, inputs and sizes. Their padding receives the last 16-byte vectors of unaligned rows of u, δ and
    // z.
    alignas(16) float rows[3][kChannels * kPitch];
    // B, or C in reverse; filled with ones if that is constant.
    struct Tile {
        alignas(16) float tile[kConfig.group()][kRowPitch];
    } B;
    // Per thread, loads in flight: u of this tile and of the next, z, δ and, in the first threads, B of the next.
    static constexpr int kVectorsOfB = kConfig.group() * kConfig.parts() * kTokens / 8;
    static constexpr int kVectors = (kVectorsOfB + SelectivePiecesConfig::kThreads - 1) / SelectivePiecesConfig::kThreads;
    using InFlight = unsigned[SelectivePiecesConfig::kThreads][8];
    alignas(16) InFlight elements_in_flight[4], coefficients_in_flight[kVectors];
    alignas(16) float bias[kChannels];
    SelectivePlace place;
};

struct SelectivePiecesArgs {
    // In reverse, `u` is the gradient of out and `B` is C.
    SelectiveInputs in;
    Coefficients gain = {};  // rglru in reverse: the constant B, which multiplies its output; no data: none
    bool reverse = false;
    DType io = DType::f32;
    bool input_times_delta = true;  // false: dirac, or reverse
    bool along_tokens = true;       // u is contiguous along tokens, otherwise along channels
    // Whether vectors of eight contiguous elements, from multiples of eight on, are 16-byte aligned: in all tensors of u's
    // shape; in B.
    bool rows_are_aligned = false, coefficients_are_aligned = false;
    int span = 0;    // consecutive channels that read the same groups of B and C; a block does not cross its multiples
    int groups = 1;  // groups of states, each with blocks of its own
    Segments segments;
    SegmentMaps maps = {};
    // Where segments are skipped: (count, sequences, dim), 0 at first, then the sums of steps of segments that have their maps.
    float* steps = nullptr;
};

}  // namespace gdn_cuda::scan
