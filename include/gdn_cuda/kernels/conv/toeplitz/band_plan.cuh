// Shared memory of toeplitz/band.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kBandRow = 64, kBandBlock = 16;  // tokens

// Rows that a filter reaches back from a row of tokens.
GDN_HOST_DEVICE constexpr int band_rows(int taps) {
    const int blocks = (taps + kBandBlock - 2) / kBandBlock;
    return (blocks + 3) / 4;
}

// u of the last tokens: units of eight tokens in kParts bf16 parts. Unit indices increase without end, modulo kUnits.
template <int kUnits, int kParts>
struct TileRing {
    static_assert((kUnits & (kUnits - 1)) == 0);
    alignas(16) unsigned units[kParts][kUnits][4];
};

// Pairs of taps h[x], h[x - 1] for every x, in kParts bf16 parts.
template <int kTaps, int kParts>
struct BandTable {
    static constexpr int parts = kParts, rows_in_registers = 0;
    static constexpr int kBefore = 14;  // pairs before x = 0
    static constexpr int kWords = kBefore + kBandRow * band_rows(kTaps) + kBandBlock;
    alignas(16) unsigned words[kParts][kWords];
};

}  // namespace gdn_cuda::conv
