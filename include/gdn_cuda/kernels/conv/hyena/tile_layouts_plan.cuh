// Shared memory of hyena/tile_layouts.cuh, and the channels of a block, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

// 512 tokens of contiguous channels, one channel per warp.
template <int kChannels>
struct HyenaColumnsShared {
    alignas(16) float rows[kChannels][kTileTokens];
};
template <>
struct HyenaColumnsShared<0> {};

// A warp's tile of one tensor, as its threads' own elements (hyena/tile_prefetch.cuh).
template <int kBytes>
struct HyenaOwnSlot {
    alignas(16) unsigned char bytes[kTileTokens * kBytes];
};
template <int kCount, int kBytes>
struct HyenaOwnSlots {
    HyenaOwnSlot<kBytes> slots[kCount];
};
template <int kBytes>
struct HyenaOwnSlots<0, kBytes> {};

// Channels in a 32-byte sector, the smallest unit of memory traffic, or in half a sector.
GDN_HOST_DEVICE constexpr int hyena_columns(DType io, bool whole_sector) {
    return (whole_sector ? 32 : 16) / bytes_of(io);
}

}  // namespace gdn_cuda::conv
