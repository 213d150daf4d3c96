// Configuration and shared memory of conv/hyena_short and conv/hyena_short_columns, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaShortFewTaps = 8, kHyenaShortMostTaps = 32;
inline constexpr int kHyenaShortEvoTaps = 7;
inline constexpr int kHyenaShortThreads = 128, kHyenaShortWarps = kHyenaShortThreads / 32;

struct HyenaShortConfig {
    DType io;    // dtype of x1, x2, v, y
    int taps;    // the most taps
    bool exact;  // filters have exactly `taps` taps, so loops over taps have no branches

    constexpr bool operator==(const HyenaShortConfig&) const = default;

    GDN_FIELDS(io, taps, exact)

    // Whether a filter of `count` taps ends before `lag`. Padding with zero taps would be wrong: zero times infinity is NaN.
    GDN_HOST_DEVICE constexpr bool ends_before(int lag, int count) const { return !exact && lag >= count; }

    // conv/hyena_short: tokens of a warp's tile, eight per lane.
    static constexpr int tile() { return 32 * 8; }
    // Blocks per SM, such that registers do not spill; more blocks have more loads in flight.
    GDN_HOST_DEVICE constexpr int blocks_an_sm() const {
        const bool few = taps <= kHyenaShortFewTaps;
        return io == DType::f32 ? (few ? 5 : 3) : (few ? 7 : 5);
    }
    // conv/hyena_short_columns: channels per lane, such that its window fits into registers, and tokens per step.
    GDN_HOST_DEVICE constexpr int lane_channels() const { return taps <= kHyenaShortFewTaps ? 4 : 2; }
    GDN_HOST_DEVICE constexpr int warp_channels() const { return 32 * lane_channels(); }
    GDN_HOST_DEVICE constexpr int step() const { return taps <= kHyenaShortFewTaps || io == DType::f32 ? 4 : 8; }
    // Shared memory of a warp in bytes: taps and recent inputs.
    GDN_HOST_DEVICE constexpr int columns_shared_bytes() const { return 2 * taps * warp_channels() * bytes_of(DType::f32); }
    // conv/hyena_short_columns: blocks per SM, as blocks_an_sm.
    GDN_HOST_DEVICE constexpr int columns_blocks_an_sm() const {
        return exact && taps <= kHyenaShortFewTaps && io != DType::f32 ? 4 : 3;
    }
};

// A warp of conv/hyena_short.
template <HyenaShortConfig kConfig>
struct HyenaShortShared {
    HyenaStage<HyenaShortConfig::tile()> stage;
    float taps[kConfig.taps];
};

// A warp of conv/hyena_short_columns; a lane's Floats are those of its channels.
template <HyenaShortConfig kConfig, class Floats>
struct HyenaShortColumnsShared {
    Floats taps[kConfig.taps][32], recent[kConfig.taps][32];
    static_assert(sizeof(taps) + sizeof(recent) == kConfig.columns_shared_bytes());
};

}  // namespace gdn_cuda::conv
