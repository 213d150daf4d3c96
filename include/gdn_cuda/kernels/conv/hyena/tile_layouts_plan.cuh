// Shared memory of hyena/tile_layouts.cuh, and how many channels a block takes, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

// 512 tokens of neighbouring channels, one of each warp.
template <int kChannels>
struct HyenaColumnsShared {
    alignas(16) float rows[kChannels][kTileTokens];
};
template <>
struct HyenaColumnsShared<0> {};

// A thread's own elements of a tile of a tensor, of a warp (hyena/tile_prefetch.cuh).
template <int kBytes>
struct HyenaOwnSlot {
    alignas(16) unsigned char bytes[kTileTokens * kBytes];
};
template <int kCount, int kBytes>
struct HyenaOwnSlots {
    HyenaOwnSlot<kBytes> of[kCount];
};
template <int kBytes>
struct HyenaOwnSlots<0, kBytes> {};

// Channels of a sector of 32 bytes, the least that memory moves, or of half a sector.
GDN_HOST_DEVICE constexpr int hyena_columns(DType io, bool whole_sector) {
    return (whole_sector ? 32 : 16) / bytes_of(io);
}

}  // namespace gdn_cuda::conv
