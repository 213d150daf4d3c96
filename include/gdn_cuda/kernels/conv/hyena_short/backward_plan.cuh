// Arguments of conv/hyena_short_backward and conv/hyena_short_columns_backward, and their tiles and steps, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>

namespace gdn_cuda::conv {

struct HyenaShortBackwardArgs {
    HyenaArgs forward;                     // without its outputs; `vectors` also of the tensors below
    HyenaTensor of_y, of_x1, of_x2, of_v;  // gradients
    HyenaInitial of_last;                  // the gradient of the state behind the last token
    float* of_initial;                     // (batch, channel, taps - 1), contiguous; may be null
    float* of_weight;                      // sums of a share: (batch, segment; channel, tap)
    float* of_bias;                        // (batch, segment; channel)
};

// Of hyena_short_backward. The last lanes of a tile only have gradients that the tokens of others meet.
struct HyenaShortBackwardTile {
    int taps;

    // Of an SM, such that registers do not spill.
    GDN_HOST_DEVICE constexpr int blocks(DType io) const { return taps > kHyenaShortFewTaps ? 2 : io == DType::f32 ? 3 : 4; }
    GDN_HOST_DEVICE constexpr int halo_lanes() const { return (taps - 1 + 8 - 1) / 8; }
    GDN_HOST_DEVICE constexpr int step() const { return (32 - halo_lanes()) * 8; }
};

// Of hyena_short_columns_backward, such that two windows and the sums of the taps fit into registers.
struct HyenaShortBackwardColumns {
    HyenaShortConfig config;

    GDN_HOST_DEVICE constexpr bool has_few_taps() const { return config.taps <= kHyenaShortFewTaps; }
    // Of an SM, such that registers do not spill.
    GDN_HOST_DEVICE constexpr int blocks() const { return has_few_taps() && config.io != DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int lane_channels() const { return has_few_taps() ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int warp_channels() const { return 32 * lane_channels(); }
    GDN_HOST_DEVICE constexpr int step() const { return has_few_taps() ? 4 : 8; }
    // Tokens that the gradients of x1 and v wait, whole steps.
    GDN_HOST_DEVICE constexpr int delay() const { return (config.taps - 1 + step() - 1) / step() * step(); }
    // Bytes of shared memory of a warp: taps, and u and dz of the tokens that wait and one more.
    GDN_HOST_DEVICE constexpr int shared_bytes() const {
        return (config.taps + 2 * (delay() + 1)) * warp_channels() * bytes_of(DType::f32);
    }
};

// Of a warp of hyena_short_columns_backward: numbers of its lanes' channels.
template <HyenaShortConfig kConfig, class Numbers>
struct HyenaShortColumnsBackwardShared {
    static constexpr int kWaiting = HyenaShortBackwardColumns{kConfig}.delay();
    Numbers taps[kConfig.taps][32], u[kWaiting + 1][32], dz[kWaiting + 1][32];
    static_assert(sizeof(taps) + sizeof(u) + sizeof(dz) == HyenaShortBackwardColumns{kConfig}.shared_bytes());
};

}  // namespace gdn_cuda::conv
