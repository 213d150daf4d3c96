// Configuration and shared memory of gdn/backward_mma_gradients, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/backward/gradients_args.cuh>

namespace gdn_cuda::gdn {

struct BackwardGradientsConfig {
    int key_blocks;  // 64 columns of keys each: 1 to 4
    DType io;

    constexpr bool operator==(const BackwardGradientsConfig&) const = default;

    GDN_FIELDS(key_blocks, io)

    static constexpr int kWarps = 8;
    GDN_HOST_DEVICE static constexpr int threads() { return kWarps * 32; }
};

struct BackwardGradientsPlan {
    // 64 x 64 elements; 16-byte vector p of row r is at p ^ (r % 8).
    struct alignas(128) Tile {
        unsigned char bytes[kChunk * 128];
    };
    // A tile of 64 tokens x 64 value columns each.
    struct Values {
        Tile output_gradient, value_gradient, error[2];
    };
    struct Columns {
        Tile state, state_gradient;  // 64 value rows x 64 key columns
        Tile query, key;             // 64 tokens x 64 key columns
    };
    Values values;
    Tile by_scores[2];  // dP, of queries and keys, in two parts
    Tile by_keys;       // dA + dA^T
    union {
        Columns columns;
        float moments[kChunk][kChunk + 1];  // M; free while no columns are loaded
    };
    ChunkScalars scalars;
    float row_sums[2][2][kChunk];  // by half of the columns: s, u; at the end x.dx of queries and keys
    float beta_gradient[kChunk], within_chunk[kChunk];
    float state_product[BackwardGradientsConfig::kWarps];  // <E, S> by warp
    GradientsWork work;                                    // kept out of registers
    int first_thread;                                      // 0 (MmaLane::refresh)
};

}  // namespace gdn_cuda::gdn
