// Arguments of conv/hyena_short_backward and conv/hyena_short_columns_backward, and their tiles and steps, for host and
// device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>

namespace gdn_cuda::conv {

struct HyenaShortBackwardArgs {
    HyenaArgs forward;             // without its outputs; `vectors` also covers the tensors below
    HyenaTensor dy, dx1, dx2, dv;  // gradients
    HyenaInitial grad_state;       // gradient of the final state
    float* dinitial;               // (batch, channel, taps - 1), contiguous; may be null
    float* dweight;                // sums of a segment (batch, segment; channel, tap)
    float* dbias;                  // sums of a segment (batch, segment; channel)
};

// conv/hyena_short_backward. The last lanes of a tile only supply gradients that the tokens of other lanes need.
struct HyenaShortBackwardTile {
    int taps;

    // Blocks per SM, such that registers do not spill.
    GDN_HOST_DEVICE constexpr int blocks(DType io) const { return taps > kHyenaShortFewTaps ? 2 : io == DType::f32 ? 3 : 4; }
    GDN_HOST_DEVICE constexpr int halo_lanes() const { return (taps - 1 + 8 - 1) / 8; }
    GDN_HOST_DEVICE constexpr int step() const { return (32 - halo_lanes()) * 8; }
};

// conv/hyena_short_columns_backward. Sizes are such that two windows and the sums of the taps fit into registers.
struct HyenaShortBackwardColumns {
    HyenaShortConfig config;

    GDN_HOST_DEVICE constexpr bool has_few_taps() const { return config.taps <= kHyenaShortFewTaps; }
    // Blocks per SM, such that registers do not spill.
    GDN_HOST_DEVICE constexpr int blocks() const { return has_few_taps() && config.io != DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int lane_channels() const { return has_few_taps() ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int warp_channels() const { return 32 * lane_channels(); }
    GDN_HOST_DEVICE constexpr int step() const { return has_few_taps() ? 4 : 8; }
    // Tokens, in whole steps, by which the gradients of x1 and v lag behind the inputs.
    GDN_HOST_DEVICE constexpr int delay() const { return (config.taps - 1 + step() - 1) / step() * step(); }
    // Shared memory of a warp in bytes: taps, and u and dz of the delayed tokens and one more.
    GDN_HOST_DEVICE constexpr int shared_bytes() const {
        return (config.taps + 2 * (delay() + 1)) * warp_channels() * bytes_of(DType::f32);
    }
};

// A warp of conv/hyena_short_columns_backward; a lane's Floats are those of its channels.
template <HyenaShortConfig kConfig, class Floats>
struct HyenaShortColumnsBackwardShared {
    static constexpr int kDelayed = HyenaShortBackwardColumns{kConfig}.delay();
    Floats taps[kConfig.taps][32], u[kDelayed + 1][32], dz[kDelayed + 1][32];
    static_assert(sizeof(taps) + sizeof(u) + sizeof(dz) == HyenaShortBackwardColumns{kConfig}.shared_bytes());
};

}  // namespace gdn_cuda::conv
