// Shared memory of a block, the mbarriers by which its roles hand chunks on, and what it caches of a chunk in global memory.
#pragma once

#include <gdn_cuda/kernels/chunked/args.cuh>
#include <gdn_cuda/kernels/chunked/config.cuh>
#include <gdn_cuda/kernels/chunked/triangle.cuh>
#include <gdn_cuda/kernels/chunked/work.cuh>

namespace gdn_cuda::gdn {

enum NamedBarriers : int {
    kBlockBarrier,
    kKeysBarrier,  // scores warpgroup and the inverse warpgroup of the chunk
};
static_assert(kKeysBarrier < kWarpgroupBarrier);

// Inverse norms of queries and keys, where the backward hands them on.
template <bool kKept>
struct NormsIf {};
template <>
struct NormsIf<true> {
    float query_norm[kChunk], key_norm[kChunk];
};

// The tiles that are loaded of chunks. Long keys have a ring of their own, and each ring's barriers.
template <ChunkedConfig kConfig>
struct LoadedTiles {
    struct Stage {
        SwizzledTile key[kConfig.key_tiles()], query[kConfig.key_tiles()], value[kConfig.value_groups];
    };
    Stage stages[kConfig.stages];
};
template <ChunkedConfig kConfig>
    requires(kConfig.is_wide())
struct LoadedTiles<kConfig> {
    struct Stage {
        SwizzledTile *key, *query, *value;
    };
    struct Rows {
        SwizzledTile query[kConfig.key_tiles()], value[kConfig.value_groups];
    };
    SwizzledTile keys[kConfig.stages][kConfig.key_tiles()];
    Rows rows[kConfig.row_stages()];
    //     rows_full      TMA -> scores; inverse, if a sequence ends in the chunk
    //     rows_empty     each warp of the value warpgroup has read queries and values -> scores
    //     inverse_empty, scores_empty   it has read T, and P -> inverse, and scores
    unsigned long long rows_full[kConfig.row_stages()], rows_empty[kConfig.row_stages()], inverse_empty, scores_empty;
};

template <ChunkedConfig kConfig>
struct ChunkedPlan : LoadedTiles<kConfig> {
    static_assert(kConfig.is_valid());
    // Results of the helper roles for a chunk; zero above the diagonal.
    struct Matrices {
        SwizzledTile inverse, inverse_residual;  // T = (I + A)^-1 diag(beta); its rounding residual, where needed
        SwizzledTile scores;                     // P: q k^T, decayed, scaled and masked
    };
    struct alignas(4) CancelFlags {
        bool column[4];
    };
    // Per-token scalars; G: cumulative gates (log2), r: inverse norms of keys and queries.
    struct alignas(16) Factors : NormsIf<kConfig.trains> {
        float gate[kChunk], beta[kChunk];
        // Exponents: query-key products are multiplied by 2^(row - column), and key-key products. Inverted in fp16, these are
        // multiplied by r instead; key_row is r then, where keys are normalised.
        float key_row[kChunk], query_row[kChunk], column[kChunk];
        float key_scale[kChunk];     // exp(G) r: scales S k^T
        float query_scale[kChunk];   // scale exp(G) r
        float update_scale[kChunk];  // exp(G_end - G) r
    };
    union InverseScratch {
        HalfBlocks half;
        TriangleBlock blocks[kTriangleBlocks];  // where entries may be beyond fp16
    };
    // A chunk uses stage (chunk % stages) of what is loaded, and slot (chunk % slots) of what is formed from it.
    Matrices matrices[kConfig.slots()];
    SwizzledTile output[kConfig.value_groups];
    InverseScratch inverse[kConfig.inverse_groups];
    // Per column of blocks, whether the inverse has entries beyond kCancelThreshold; then it, V' and P are used in two parts.
    CancelFlags cancels[kConfig.slots()];
    Factors factors[kConfig.stages];
    float decay[kConfig.stages];               // exp(G_end) of a chunk, or kResets
    ChunkedWork work, passes[kMaxPasses - 1];  // kept out of registers; passes run last to first
    int passes_left;
    // mbarriers, by stage: who arrives -> who waits (counts: set_barriers).
    //     stage_full      TMA, and the scalar warp's gates and betas -> scores, inverse
    //     exponents_full  scores, or with norms the inverse: exponents of keys -> scores, inverse
    //     matrices_full   scores and inverse: P, T and factors -> value warpgroups
    //     stage_empty     each warp of the value warpgroups has read stage, matrices and factors -> scores, inverse
    unsigned long long stage_full[kConfig.stages], matrices_full[kConfig.stages];
    unsigned long long exponents_full[kConfig.stages], stage_empty[kConfig.stages];
    unsigned long long scratch_empty[kConfig.inverse_groups];  // among the inverse warps: all have read the scratch blocks
    WorkTilesIf<kConfig.persistent> work_tiles;
    // In blocks that prepare, where no value warpgroup reads tiles:
    //     tiles_empty     each warp of the scores and of the chunk's inverse warpgroup has multiplied its tiles -> scores
    unsigned long long tiles_empty[kConfig.stages];
};

// A chunk's tiles; `stage`: its index among the stages.
template <ChunkedConfig kConfig, class Plan>
GDN_HOST_DEVICE constexpr decltype(auto) tiles_of(Plan& shared, int chunk, int stage) {
    if constexpr (kConfig.is_wide()) {
        auto& rows = shared.rows[static_cast<unsigned>(chunk) % kConfig.row_stages()];
        return typename ChunkedPlan<kConfig>::Stage{shared.keys[stage], rows.query, rows.value};
    } else {
        return (shared.stages[stage]);
    }
}

// What a value role has to do at a time.
template <ChunkedConfig kConfig>
struct WorkOfConfig {
    using Type = ChunkedWork;
};
template <ChunkedConfig kConfig>
    requires(kConfig.persistent)
struct WorkOfConfig<kConfig> {
    using Type = WorkTile;
};
template <ChunkedConfig kConfig>
using WorkOf = typename WorkOfConfig<kConfig>::Type;

// A chunk's scalars as they are handed over: the factors, and what else depends on gates or entries of T.
template <ChunkedConfig kConfig>
struct CachedFactors : ChunkedPlan<kConfig>::Factors {
    float decay;
    typename ChunkedPlan<kConfig>::CancelFlags cancels;
    float unused[2];  // bulk copies take multiples of 16 bytes
};

// What helper roles compute of a chunk of a value head, in global memory.
template <ChunkedConfig kConfig>
struct CachedChunk {
    SwizzledTile inverse, scores, inverse_residual;  // the last only where an entry of T cancels
    CachedFactors<kConfig> scalars;
};

}  // namespace gdn_cuda::gdn
