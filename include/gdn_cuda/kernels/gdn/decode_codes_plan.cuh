// Configuration and shared memory of gdn/decode_codes, whose arguments are those of gdn/decode.
#pragma once

#include <gdn_cuda/kernels/gdn/decode_plan.cuh>

namespace gdn_cuda::gdn {

struct DecodeCodesConfig {
    int head_k;  // exactly the tensors': 64, 96 or 128
    DType io;
    bool fused_gates;  // as DecodeConfig's

    constexpr bool operator==(const DecodeCodesConfig&) const = default;

    GDN_FIELDS(head_k, io, fused_gates)

    static constexpr int kWarps = 4, kTileRows = 16, kTiles = 2;  // kTiles: of a warp, at most
    GDN_HOST_DEVICE static constexpr int threads() { return 32 * kWarps; }
    GDN_HOST_DEVICE constexpr int vectors() const { return head_k / 16; }
    GDN_HOST_DEVICE constexpr int groups() const { return head_k / kCodeGroup; }
    // Where a row's 16-byte vector is: half a warp reads 32 bytes of each of four rows at once.
    GDN_HOST_DEVICE constexpr int vector_at(int row, int vector) const {
        return head_k % 128 == 0 ? vector ^ (row & 3) << 1 : head_k % 64 == 0 ? vector ^ (row & 2) : vector;
    }
};

template <DecodeCodesConfig kConfig>
struct DecodeCodesSharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct Tile {
        Vector codes[DecodeCodesConfig::kTileRows][kConfig.vectors()];
        alignas(16) float scales[DecodeCodesConfig::kTileRows][kConfig.groups()];
    };
    Tile tiles[DecodeCodesConfig::kWarps][DecodeCodesConfig::kTiles];
    Vector right[DecodeCodesConfig::kWarps][kConfig.groups()][16];  // what lanes of the first four columns have
};

}  // namespace gdn_cuda::gdn
