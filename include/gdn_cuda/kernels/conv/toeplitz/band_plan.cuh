// Shared memory of toeplitz/band.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kBandRow = 64, kBandBlock = 16;  // tokens

// Rows before a row of tokens that a filter's taps reach.
GDN_HOST_DEVICE constexpr int band_rows(int taps) {
    const int blocks = (taps + kBandBlock - 2) / kBandBlock;
    return (blocks + 3) / 4;
}

// u of the last tokens: pieces of eight tokens in kParts bf16 parts. Numbers of pieces count on, modulo kPieces.
template <int kPieces, int kParts>
struct TileRing {
    static_assert((kPieces & (kPieces - 1)) == 0);
    alignas(16) unsigned pieces[kParts][kPieces][4];
};

// Pairs of taps h[x], h[x - 1] for every x, in kParts bf16 parts.
template <int kTaps, int kParts>
struct BandTable {
    static constexpr int kBefore = 14;  // pairs before x = 0
    static constexpr int kWords = kBefore + kBandRow * band_rows(kTaps) + kBandBlock;
    alignas(16) unsigned words[kParts][kWords];
};

}  // namespace gdn_cuda::conv
