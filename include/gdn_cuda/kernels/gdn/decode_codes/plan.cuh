// Configuration, shared memory and arguments of gdn/decode_codes, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_operand.cuh>

namespace gdn_cuda::gdn {

struct DecodeCodesConfig {
    int head_k;  // exactly the tensors': 128
    DType io;    // query, key, value, output
    int stages;  // tiles of 16 rows in flight, for each warp
    int blocks;  // a multiprocessor, for which registers are limited
    bool pairs;
    bool mamba = false;

    constexpr bool operator==(const DecodeCodesConfig&) const = default;

    GDN_FIELDS(head_k, io, stages, blocks, pairs, mamba)

    static constexpr int kWarps = 4, kTileRows = 16;
    static constexpr int kMostTiles = 16;  // in a warp's part of a head
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
        Vector codes[2][kConfig.vectors()][32];  // of rows g and g + 8: each lane's own
        alignas(16) float scales[DecodeCodesConfig::kTileRows][kConfig.groups()];
    };
    // A unit's tokens, and those of the next one.
    struct Token {
        Vector key[kConfig.head_k / 8], query[kConfig.head_k / 8];
        Vector values[DecodeCodesConfig::kMostTiles * DecodeCodesConfig::kTileRows / 8];
        Vector gates[kConfig.mamba ? DecodeCodesConfig::kMostTiles * DecodeCodesConfig::kTileRows / 8 : 1];
    };
    struct Warp {
        Stage stages[kConfig.stages];
        Token tokens[2];
        CodeOperand<kConfig.head_k> operand;
    };
    Warp warps[DecodeCodesConfig::kWarps];
};

// Warps take parts of heads in turn: `units` of them, `columns` of each sequence, which are heads times parts.
struct MambaScalars {
    DecodeArgs::Heads z;  // may be absent
    Tagged delta, bias, D;
    i64 delta_sequence, delta_head, bias_head, D_head;  // bytes
    const float* A;
    i64 A_head;
    bool softplus, is_dirac;
};
struct DecodeCodesArgs {
    DecodeArgs step;
    int units, columns;
    int tiles;                           // in a part of a head
    int part_bits;                       // a head has 2^part_bits parts
    int warps;                           // in the grid
    int sequences_ahead, columns_ahead;  // from a warp's unit to its next one
    MambaScalars mamba;
    unsigned key_inverse;                // 2^32 / step.heads_per_key, rounded up, or 0 for 1
};

}  // namespace gdn_cuda::gdn
