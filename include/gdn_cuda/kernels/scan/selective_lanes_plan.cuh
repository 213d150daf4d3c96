// Configuration, shared memory and arguments of scan/selective_lanes, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveLanesConfig {
    int lanes;    // per channel, each with tokens of its own
    int tokens;   // per lane
    int at_once;  // states that a lane computes together
    int warps;
    int group;  // states whose B and C are in shared memory

    constexpr bool operator==(const SelectiveLanesConfig&) const = default;
    static constexpr int kMostStates = 64;  // poles and states of this many are kept there
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps; }
    GDN_HOST_DEVICE constexpr int channels() const { return threads() / lanes; }
    GDN_HOST_DEVICE constexpr int tile() const { return lanes * tokens; }
    // Blocks an SM for which registers are limited.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor() const {
        return (tokens == 16 ? 16 : at_once == 1 ? 24 : at_once == 2 ? 20 : 12) / warps;
    }

    GDN_FIELDS(lanes, tokens, at_once, warps, group)
};

template <SelectiveLanesConfig kConfig>
struct SelectiveLanesSharedPlan {
    using Config = SelectiveLanesConfig;
    static constexpr int kChannels = kConfig.channels(), kTile = kConfig.tile(), kThreads = kConfig.threads();
    static constexpr int kGroup = kConfig.group;

    // B and C of the tile's tokens, [state][four of a lane][lane][token]: lanes read adjacent vectors.
    alignas(16) float coefficients[2][kGroup][kTile];
    // Loads in flight: a thread's vectors of B and C; its elements, u of two tiles.
    static constexpr int kVectors = 2 * kGroup * kTile / 8 / kThreads, kRow = kConfig.tokens / 8;
    struct alignas(16) InFlight {
        unsigned words[4];
    };
    InFlight coefficients_in_flight[kVectors][kThreads];
    InFlight u[2][kRow][kThreads], delta[kRow][kThreads], z[kRow][kThreads];
    // Poles in log2; states before the tile, and what it adds to them.
    float rates[Config::kMostStates][kChannels], states[Config::kMostStates][kChannels], ends[kGroup][kChannels];
    float steps[kChannels];  // sums of the tile's
};

struct SelectiveLanesArgs {
    SelectiveInputs in;  // not packed
    ChannelRows out;
    void* last_state = nullptr;  // (sequence, channel, n)
    void* states = nullptr;      // (chunk, channel, n), the state before each chunk; null: not kept
    Segments segments;           // whole tiles, taken in turns
    Turns turns;
    DType io = DType::bf16;
    bool input_times_delta = true;  // false: dirac
    int span = 0;  // consecutive channels that read the same groups of B and C; a block does not cross its multiples
};

}  // namespace gdn_cuda::scan
