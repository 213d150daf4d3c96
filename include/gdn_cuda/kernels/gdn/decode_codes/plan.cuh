// Configuration, shared memory and arguments of gdn/decode_codes, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/decode_plan.cuh>

namespace gdn_cuda::gdn {

struct DecodeCodesConfig {
    int head_k;  // exactly the tensors': 64 or 128
    DType io;    // query, key, value, output
    int stages;  // tiles of 16 rows in flight, for each warp
    int blocks;  // of a multiprocessor
    bool units;  // updates in units of the row's decayed scale, where those are safe

    constexpr bool operator==(const DecodeCodesConfig&) const = default;

    GDN_FIELDS(head_k, io, stages, blocks, units)

    static constexpr int kWarps = 4, kTileRows = 16;
    GDN_HOST_DEVICE static constexpr int threads() { return 32 * kWarps; }
    GDN_HOST_DEVICE constexpr int groups() const { return head_k / kCodeGroup; }
    GDN_HOST_DEVICE constexpr int vectors() const { return head_k / 64; }  // 16 codes of a row, for each of four lanes
};

template <DecodeCodesConfig kConfig>
struct DecodeCodesSharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct Stage {
        Vector codes[2][kConfig.vectors()][32];
        alignas(16) float scales[DecodeCodesConfig::kTileRows][kConfig.groups()];
    };
    struct Warp {
        Stage stages[kConfig.stages];
        Vector tokens[2][2][kConfig.head_k / 8];  // key and query of a head, and of the next one
    };
    Warp warps[DecodeCodesConfig::kWarps];
};

struct DecodeCodesArgs {
    DecodeArgs step;
    unsigned sequences, heads;
    unsigned tiles, parts;  // tiles of a warp's part of a head, and how many parts a head has
    bool copies;  // (measurements) no arithmetic
};

}  // namespace gdn_cuda::gdn
