// Configuration and shared memory of gdn/backward_chain.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>

namespace gdn_cuda::gdn {

struct BackwardChainConfig {
    int head_k;        // 64, 96 or 128; shorter keys are zero-padded
    int value_groups;  // warpgroups with 64 rows of the state each
    Direction direction;
    DType io;

    constexpr bool operator==(const BackwardChainConfig&) const = default;

    GDN_FIELDS(head_k, value_groups, direction, io)

    // One warpgroup loads; there are no helper roles.
    GDN_HOST_DEVICE constexpr ChunkedConfig block() const {
        return {.head_k = head_k,
                .value_groups = value_groups,
                .inverse_groups = 0,
                .stages = direction == Direction::backward && value_groups == 2 ? 2 : 3,
                .io = io,
                .direction = direction,
                .trains = true};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return block().threads(); }
    // setmaxnreg.
    GDN_HOST_DEVICE constexpr int loading_registers() const { return 24; }
    GDN_HOST_DEVICE constexpr int value_registers() const { return value_groups == 1 ? 240 : 232; }
};

// Queries and P, which only the chain backward in time reads.
template <int kKeyTiles>
struct QueriesIf {
    SwizzledTile query[kKeyTiles], scores;
};
template <>
struct QueriesIf<0> {};

template <BackwardChainConfig kConfig>
struct BackwardChainPlan {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    static constexpr bool kQueries = kConfig.direction == Direction::backward;
    using Factors = CachedFactors<kAnyTraining>;
    using CancelFlags = ChunkedPlan<kAnyTraining>::CancelFlags;
    struct Stage : QueriesIf<kQueries ? kBlock.key_tiles() : 0> {
        SwizzledTile key[kBlock.key_tiles()], value[kBlock.value_groups], inverse, inverse_residual;
    };
    Stage stages[kBlock.stages];
    SwizzledTile states[kBlock.value_groups][kBlock.key_tiles()];  // staged for TMA
    SwizzledTile output[kBlock.value_groups];
    Factors factors[kBlock.stages];
    ChunkedWork work;
    // stage_full: two arrivals of the loading warps; stage_empty: each warp of the value warpgroups; tail_full: keys, queries and
    // values of a chunk in which the sequence ends, before what follows it is cleared.
    unsigned long long stage_full[kBlock.stages], stage_empty[kBlock.stages], tail_full;
};

}  // namespace gdn_cuda::gdn
