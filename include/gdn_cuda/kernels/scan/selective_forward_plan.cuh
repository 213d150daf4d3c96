// Configuration, shared memory and arguments of scan/selective_forward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective_plan.cuh>

namespace gdn_cuda::scan {

struct SelectiveForwardConfig {
    Transition transition;
    bool is_complex;
    int states;  // a thread
    int lanes;   // of a warp that share a channel

    constexpr bool operator==(const SelectiveForwardConfig&) const = default;
    static constexpr int kThreads = 128, kItems = 8;  // kItems: tokens × channels that a thread prepares
    GDN_HOST_DEVICE constexpr int channels() const { return kThreads / lanes; }
    GDN_HOST_DEVICE constexpr int tokens() const { return kThreads * kItems / channels(); }  // of a tile
    GDN_HOST_DEVICE constexpr int group() const { return states * lanes; }                    // states of a pass over a tile
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex ? 2 : 1; }

    GDN_FIELDS(transition, is_complex, states, lanes)
};

template <SelectiveForwardConfig kConfig>
struct SelectiveForwardSharedPlan {
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens();
    static constexpr int kPitch = kTokens + 4;  // rows of neighbouring channels begin in different banks, 16 bytes apart

    alignas(16) float step[kChannels][kPitch];
    alignas(16) float input[kChannels][kPitch];
    alignas(16) float size[has_size(kConfig.transition) ? kChannels : 1][kPitch];
    // Σ C x over the states of a thread; the lanes of a channel write to different banks.
    alignas(16) float partial[kConfig.lanes][kChannels * kPitch + 32 / kConfig.lanes];
    alignas(16) float B[kTokens][kConfig.group() * kConfig.parts()];
    alignas(16) float C[kTokens][kConfig.group() * kConfig.parts()];
    float D[kChannels], bias[kChannels];
};

struct SelectiveForwardArgs {
    SelectiveInputs in;
    SelectiveElements out;
    void* last_state = nullptr;   // (sequence, channel, state)
    void* chunk_states = nullptr;  // (chunk, channel, state), the state before each kStateChunk tokens; null: not kept
    int channels_per_span = 0;     // that share a group of B and one of C; blocks do not cross its multiples
    bool along_tokens = true;      // u and out are contiguous along tokens, otherwise along channels
};

}  // namespace gdn_cuda::scan
