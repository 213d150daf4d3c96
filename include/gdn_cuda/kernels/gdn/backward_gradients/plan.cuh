// Configuration, shared memory, barriers and arguments of gdn/backward_gradients, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/backward/gradients_args.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

struct HopperGradientsConfig {
    int key_tiles;  // tiles of 64 key columns, a warpgroup for each
    DType io;

    constexpr bool operator==(const HopperGradientsConfig&) const = default;

    GDN_FIELDS(key_tiles, io)

    // Warpgroup order: loads and gates; products of tokens with tokens; one for each tile of columns.
    static constexpr int kTokensGroup = 1, kFirstColumnsGroup = 2;
    GDN_HOST_DEVICE constexpr int threads() const { return (kFirstColumnsGroup + key_tiles) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int consumer_warps() const { return 4 * (1 + key_tiles); }
    // setmaxnreg per role.
    GDN_HOST_DEVICE constexpr int loads_registers() const { return key_tiles == 2 ? 40 : 64; }
    GDN_HOST_DEVICE constexpr int tokens_registers() const { return key_tiles == 2 ? 136 : 200; }
    GDN_HOST_DEVICE constexpr int columns_registers() const { return key_tiles == 2 ? 168 : 200; }
};

struct HopperGradientsArgs {
    // (d, head, token, batch)
    TensorMap query, key, output_gradient, value_gradient;
    TensorMap states, state_gradients;  // (column, 0, row, head and chunk)
    TensorMap errors;                   // (column, part, token, head and chunk)
    BackwardGradientsArgs call;
    int work_items;  // chunk indices times key heads
};

template <HopperGradientsConfig kConfig>
struct HopperGradientsPlan {
    static constexpr int kKeyTiles = kConfig.key_tiles, kStages = 2;

    // A chunk's keys and queries. The warpgroup of a tile stores their gradients in their place at the end.
    struct Tokens {
        SwizzledTile query[kKeyTiles], key[kKeyTiles];
    };
    // 64 value columns of one value head.
    struct Slab {
        SwizzledTile output_gradient, value_gradient, error, error_residual;
        SwizzledTile state[kKeyTiles], state_gradient[kKeyTiles];
    };
    // A value head's sums that leave the roles, for the warp that adds them to gradients of gates.
    struct Sums {
        float s[kKeyTiles][kChunk], u[kKeyTiles][kChunk];
        float within_chunk[4][kChunk];  // by warp
        float beta_gradient[kChunk];
        float state_product[4 * kKeyTiles];  // <E, S> by warp
    };
    Tokens tokens[kStages];
    Slab slabs[kStages];
    SwizzledTile scores, scores_residual;  // dP
    SwizzledTile keys;                     // dA
    alignas(128) ChunkScalars scalars[kStages];
    Sums sums[kStages];
    float norm_sums[2][kKeyTiles][kChunk];  // x.dx of queries and keys
    GradientsWork work[kStages];            // a key head of -1: none left
    // mbarriers; work items, value heads and slabs are counted, and use number % 2.
    unsigned long long tokens_full[kStages], tokens_empty[kStages];
    unsigned long long slab_full[kStages], slab_empty[kStages];
    unsigned long long scores_full, scores_empty;
    unsigned long long sums_full[kStages], head_done[kStages];
};

}  // namespace gdn_cuda::gdn
