// Configuration, shared memory and arguments of gdn/kda_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/plan.cuh>

namespace gdn_cuda::gdn {

constexpr int kKdaMmaTokens = 16;        // of a chunk
constexpr int kKdaMmaHalf = 8;           // tokens of which a thread has two channels
constexpr int kKdaMmaWarpChannels = 32;  // of a chunk, by one warp
constexpr int kKdaMmaLevels = 4;         // halves of 8, 4, 2 and 1 tokens

struct KdaMmaConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int warps;       // 4 or 8, with 16 rows of the state each
    DType io, gate;  // gate: f32, or io

    constexpr bool operator==(const KdaMmaConfig&) const = default;

    GDN_FIELDS(head_k, warps, io, gate)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return warps == 4 ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kMmaWarpRows; }
    // Whether registers can hold the next chunk's gates while the state is used.
    GDN_HOST_DEVICE constexpr bool loads_gates_early() const { return head_k <= 192; }
    GDN_HOST_DEVICE constexpr int tiles() const { return (head_k + kMmaTileElements - 1) / kMmaTileElements; }
};

// 16 rows of 64 elements. Vector p of row r is at p ^ (r % 8) ^ 4 (r / 8), so that neither rows r and r + 1 nor r and r + 8,
// which the halves of a warp store together, have the same banks.
struct alignas(128) KdaMmaTile {
    unsigned char bytes[kKdaMmaTokens * kMmaTileElements * 2];
};

// Four rows of a warp's state while a chunk goes token by token.
template <int kHeadK>
struct alignas(16) KdaTokenRows {
    float at[4][kHeadK];
};

template <KdaMmaConfig kConfig>
struct KdaMmaPlan {
    static constexpr int kTiles = kConfig.tiles();
    using Block = ChunkTriangle::Block;
    using Rows = KdaMmaTile[kTiles];
    struct alignas(128) EightRows {
        unsigned char bytes[sizeof(KdaMmaTile) / 2];
    };
    // Operands of scores. A level's left one has keys, then queries, of its upper halves; the right one has keys of the lower
    // halves. Halves of one token need no right one: these keys have no decay.
    struct Levels {
        Rows left[kKdaMmaLevels];
        EightRows right[kKdaMmaLevels - 1][kTiles];
    };
    union WarpMemory {
        Block inverse;
        KdaTokenRows<kConfig.head_k> rows;
    };
    // A warp's values, 16 tokens x 16 rows of the state (MmaLane::block_vector), overwritten by its outputs.
    struct alignas(128) Values {
        unsigned char bytes[kKdaMmaTokens * kMmaWarpRows * 2];
    };

    Rows key, query;  // as loaded
    Rows key_in, query_in, key_out, key_out_residual;
    union {
        Levels levels;
        WarpMemory warp_memory[kConfig.warps];  // once there are scores
    };
    Values values[kConfig.warps];
    Block scores;                                        // A below the diagonal, P transposed on and above it
    alignas(16) float decay[kTiles * kMmaTileElements];  // of the whole chunk
    float beta[kKdaMmaTokens], key_norm[kKdaMmaTokens];  // norms: inverse
    float query_norm[kKdaMmaTokens];                     // times scale
    alignas(8) unsigned char resets[8];                  // of each warp's channels
    MmaWork work;                                        // in shared memory because the state needs the registers
};

struct KdaMmaArgs {
    GdnCall call;
    DType state;
};

}  // namespace gdn_cuda::gdn
