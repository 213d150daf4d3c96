// Configuration, shared memory and arguments of steps on int8 states of many heads (code_step.cuh), for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/code_operand.cuh>

namespace gdn_cuda::gdn {

struct CodeStepConfig {
    int head_k;  // columns of a state: 128
    DType io;    // query, key, value, output
    int stages;  // tiles of 16 rows in flight, for each warp
    int blocks;  // a multiprocessor, for which registers are limited
    bool gated;  // outputs may have a gate for every row

    constexpr bool operator==(const CodeStepConfig&) const = default;

    GDN_FIELDS(head_k, io, stages, blocks, gated)

    static constexpr int kWarps = 4, kTileRows = 16;
    static constexpr int kMostTiles = 16;  // in a warp's part of a head
    GDN_HOST_DEVICE static constexpr int threads() { return 32 * kWarps; }
    GDN_HOST_DEVICE constexpr int groups() const { return head_k / kCodeGroup; }
    GDN_HOST_DEVICE constexpr int vectors() const { return head_k / 64; }  // 16 codes of a row, for each of four lanes
};

template <CodeStepConfig kConfig>
struct CodeStepSharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct Stage {
        Vector codes[2][kConfig.vectors()][32];  // rows g and g + 8: each lane's own
        alignas(16) float scales[CodeStepConfig::kTileRows][kConfig.groups()];
    };
    static constexpr int kRowVectors = CodeStepConfig::kMostTiles * CodeStepConfig::kTileRows / 8;
    // A unit's tokens, and those of the next one.
    struct Token {
        Vector key[kConfig.head_k / 8], query[kConfig.head_k / 8];
        Vector values[kRowVectors];
        Vector gates[kConfig.gated ? kRowVectors : 1];
    };
    struct Warp {
        Stage stages[kConfig.stages];
        Token tokens[2];
        CodeOperand<kConfig.head_k> operand;
    };
    Warp warps[CodeStepConfig::kWarps];
};

// Warps take parts of heads in turn: `units` of them, `columns` of each sequence, which are heads times parts.
struct CodeStepUnits {
    int units, columns;
    int tiles;                           // in a part of a head
    int part_bits;                       // a head has 2^part_bits parts
    int warps;                           // in the grid
    int sequences_ahead, columns_ahead;  // from a warp's unit to its next one
    unsigned key_inverse;                // 2^32 / heads of a key, rounded up, or 0 for 1
};

}  // namespace gdn_cuda::gdn
