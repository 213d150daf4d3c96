// Configuration and shared memory of gdn/backward_chain.
#pragma once

#include <gdn_cuda/kernels/chunked/state_place.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>

namespace gdn_cuda::gdn {

struct BackwardChainConfig {
    int head_k;  // 64, 96 or 128; shorter keys are zero-padded
    Direction direction;
    DType io;
    bool channels = false;  // a gate for every channel of the key; then head_k is 128

    constexpr bool operator==(const BackwardChainConfig&) const = default;

    GDN_FIELDS(head_k, direction, io, channels)

    // Warpgroups: one that loads and stores, one beside the chain, and the chain, which owns 64 rows of the state. Backward in
    // time the second is idle: handing over P^T dO and dO^T Q through shared memory cost more than it saved.
    GDN_HOST_DEVICE constexpr ChunkedConfig block() const {
        return {.head_k = head_k,
                .value_groups = 1,
                .inverse_groups = 1,
                .stages = channels && direction == Direction::backward ? 2 : 3,  // as many as fit
                .io = io,
                .direction = direction,
                .trains = true};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return block().threads(); }
    // setmaxnreg.
    static constexpr int kLoadingRegisters = 24, kOtherRegisters = 240;
};

// A warpgroup's accumulators, for the same threads of another.
template <int kElements>
struct HandedFragment {
    struct alignas(16) Four {
        float elements[4];
    };
    Four fours[kElements / 4][kWarpgroup];
};

// What the chain stages for TMA.
template <BackwardChainConfig kConfig>
struct StagedStores {
    SwizzledTile states[kConfig.block().key_tiles()], output[1];
    unsigned long long state_full, state_empty;  // a phase a chunk
    bool stores;                                 // a summary stores nothing of a chunk
    StatePlace from, to;                         // the state before the block's chunks and after them
    bool from_identity;
};

// A chunk's keys, as they are multiplied by the state before it and as they are added to it: the same but for decays of
// channels.
template <bool kChannels, int kTiles>
struct StagedKeys {
    SwizzledTile key[kTiles];

    GDN_HOST_DEVICE const SwizzledTile* keys_in() const { return key; }
    GDN_HOST_DEVICE const SwizzledTile* keys_out() const { return key; }
};
template <int kTiles>
struct StagedKeys<true, kTiles> {
    SwizzledTile key_in[kTiles], key_out[kTiles];

    GDN_HOST_DEVICE const SwizzledTile* keys_in() const { return key_in; }
    GDN_HOST_DEVICE const SwizzledTile* keys_out() const { return key_out; }
};

// Backward in time.
template <BackwardChainConfig kConfig>
struct StateGradientsPlan : StagedStores<kConfig> {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    using Factors = typename PreparedForChain<kConfig.channels>::Factors;
    struct Stage : StagedKeys<kConfig.channels, kBlock.key_tiles()> {
        SwizzledTile query[kBlock.key_tiles()], value[1], inverse, inverse_residual, scores;
    };
    Stage stages[kBlock.stages];
    Factors factors[kBlock.stages];
    ChunkedWork work;
    // stage_full: two arrivals of a loading warp; stage_empty: each warp of the chain; output: a phase a chunk; tail_full: rows
    // of a chunk in which the sequence ends, before what follows it is cleared.
    unsigned long long stage_full[kBlock.stages], stage_empty[kBlock.stages], output_full, output_empty, tail_full;
};

// Forward in time. The warpgroup beside the chain stores R.
template <BackwardChainConfig kConfig>
struct StatesPlan : StagedStores<kConfig> {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    using Factors = typename PreparedForChain<kConfig.channels>::Factors;
    struct Stage : StagedKeys<kConfig.channels, kBlock.key_tiles()> {
        SwizzledTile value[1], inverse, inverse_residual;
    };
    Stage stages[kBlock.stages];
    HandedFragment<kChunk / 2> values;  // V', with channels r V'
    Factors factors[kBlock.stages];
    ChunkedWork work;
    // As above; stage_empty: also each warp beside the chain; values: a phase a chunk.
    unsigned long long stage_full[kBlock.stages], stage_empty[kBlock.stages], values_full, values_empty, tail_full;
};

template <BackwardChainConfig kConfig>
struct PlanOfChain {
    using Type = StatesPlan<kConfig>;
};
template <BackwardChainConfig kConfig>
    requires(kConfig.direction == Direction::backward)
struct PlanOfChain<kConfig> {
    using Type = StateGradientsPlan<kConfig>;
};
template <BackwardChainConfig kConfig>
using BackwardChainPlan = typename PlanOfChain<kConfig>::Type;

}  // namespace gdn_cuda::gdn
