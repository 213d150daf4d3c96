// Shared memory of toeplitz/product.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::conv {

inline constexpr int kRowTokens = 32, kTileTokens = 512, kTileUnits = kTileTokens / 8;

// Toeplitz blocks of 32 tokens that a row of 32 tokens is multiplied by: its own, and those before.
GDN_HOST_DEVICE constexpr int toeplitz_blocks(int taps) {
    return (taps + kRowTokens - 2) / kRowTokens + 1;
}

// Pairs of taps h[x], h[x - 1] for all x between -32 and 32, in kParts bf16 parts: those of even x, then those of odd x.
template <int kParts>
struct PairTables {
    static constexpr int kBefore = 15;  // pairs before x = 0 and x = 1
    static constexpr int kPairs = 2 * kBefore + 1;
    static constexpr int kStride = (kPairs + 3) / 4 * 4 + 2;  // puts even and odd x into different banks
    unsigned words[kParts][2 * kStride];
};

}  // namespace gdn_cuda::conv
