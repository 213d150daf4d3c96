// Configuration of conv/hyena_short and conv/hyena_short_columns, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kHyenaShortFewTaps = 8, kHyenaShortMostTaps = 32;
inline constexpr int kHyenaShortEvoTaps = 7;
inline constexpr int kHyenaShortThreads = 128, kHyenaShortWarps = kHyenaShortThreads / 32;

struct HyenaShortConfig {
    DType io;    // x1, x2, v, y
    int taps;    // at most so many
    bool exact;  // not fewer: loops over taps have no branches

    constexpr bool operator==(const HyenaShortConfig&) const = default;

    GDN_FIELDS(io, taps, exact)

    // Of a filter with so many taps. A tap of zero would not do: zero times infinity is NaN.
    GDN_HOST_DEVICE constexpr bool ends_before(int lag, int given) const { return !exact && lag >= given; }

    // Of hyena_short: tokens of a warp's tile, eight a lane.
    static constexpr int tile() { return 32 * 8; }
    // Such that registers do not spill; more blocks have more loads in flight.
    GDN_HOST_DEVICE constexpr int blocks_an_sm() const {
        const bool few = taps <= kHyenaShortFewTaps;
        return io == DType::f32 ? (few ? 5 : 3) : (few ? 7 : 5);
    }
    // Of hyena_short_columns: channels of a lane, such that its window fits into registers, and tokens of a step.
    GDN_HOST_DEVICE constexpr int lane_channels() const { return taps <= kHyenaShortFewTaps ? 4 : 2; }
    GDN_HOST_DEVICE constexpr int warp_channels() const { return 32 * lane_channels(); }
    GDN_HOST_DEVICE constexpr int step() const { return taps <= kHyenaShortFewTaps || io == DType::f32 ? 4 : 8; }
    // Of a warp: taps and recent inputs.
    GDN_HOST_DEVICE constexpr int columns_shared_bytes() const { return 2 * taps * warp_channels() * bytes_of(DType::f32); }
    // Of hyena_short_columns, as blocks_an_sm.
    GDN_HOST_DEVICE constexpr int columns_blocks_an_sm() const {
        return exact && taps <= kHyenaShortFewTaps && io != DType::f32 ? 4 : 3;
    }
};

// Of a warp of hyena_short.
template <HyenaShortConfig kConfig>
struct HyenaShortShared {
    HyenaStage<HyenaShortConfig::tile()> stage;
    float taps[kConfig.taps];
};

// Of a warp of hyena_short_columns: numbers of its lanes' channels.
template <HyenaShortConfig kConfig, class Numbers>
struct HyenaShortColumnsShared {
    Numbers taps[kConfig.taps][32], recent[kConfig.taps][32];
    static_assert(sizeof(taps) + sizeof(recent) == kConfig.columns_shared_bytes());
};

}  // namespace gdn_cuda::conv
