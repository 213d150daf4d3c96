// Configuration and shared memory of gdn/backward_mma_gradients, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>
#include <gdn_cuda/kernels/gdn/backward/gradients_args.cuh>

namespace gdn_cuda::gdn {

struct BackwardGradientsConfig {
    int key_blocks;  // 64 columns of keys each: 1 to 4
    DType io;

    constexpr bool operator==(const BackwardGradientsConfig&) const = default;

    GDN_FIELDS(key_blocks, io)

    static constexpr int kWarps = 16;
    GDN_HOST_DEVICE static constexpr int threads() { return kWarps * 32; }
};

struct BackwardGradientsPlan {
    using Tile = MmaTile;
    // A tile of 64 tokens x 64 value columns each.
    struct Values {
        Tile output_gradient, value_gradient, error[2];
    };
    using TilePair = Tile[2];
    // Where a value head's tiles begin in global memory: its first column and row.
    struct Sources {
        const void *output_gradient, *value_gradient, *errors, *states, *state_gradients;
        int parts;  // 2 where T cancels: then the rounding residual of R is used too
    };
    Values values;
    TilePair states;          // S and E, 64 value rows x 64 key columns
    TilePair tokens;          // queries and keys, 64 tokens x 64 key columns
    Tile by_scores[2];        // dP, of queries and keys, in two parts; on and below the diagonal, as dA
    Tile by_keys;             // dA
    ChunkScalars scalars[2];  // value head % 2, as `sources`
    Sources sources[2];
    float row_sums[4][2][kChunk];  // by 16 columns: s, u; at the end x.dx of queries and keys
    float beta_gradient[kChunk];
    float within_chunk[BackwardGradientsConfig::kWarps][kChunk];  // sums of M by warp
    float state_product[BackwardGradientsConfig::kWarps];         // <E, S> by warp
    GradientsWork work;                                           // kept out of registers
    int head;                                                     // the value head whose turn it is
    const void *queries, *keys;                                   // the chunk's
};

}  // namespace gdn_cuda::gdn
