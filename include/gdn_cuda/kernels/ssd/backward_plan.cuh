// Configuration, shared memory and arguments of ssd/backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/ssd/gradients_plan.cuh>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

namespace gdn_cuda::ssd {

struct SsdBackwardConfig {
    DType io;
    int states;  // 64 or 128; fewer are padded with zeros

    constexpr bool operator==(const SsdBackwardConfig&) const = default;

    GDN_FIELDS(io, states)

    // Warpgroup order: inputs, readers, writers.
    GDN_HOST_DEVICE constexpr int threads() const { return 3 * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int state_tiles() const { return states / kTileElements; }
    GDN_HOST_DEVICE constexpr int inputs_registers() const { return 56; }
    GDN_HOST_DEVICE constexpr int token_registers() const { return 224; }
};

struct SsdBackwardArgs : SsdGradientArgs {
    // (element, head or group, token, batch), and of the states before chunks and their gradients after (element, head,
    // channel, chunk).
    TensorMap x, out_gradient, B, C, states, gradients;
};

template <SsdBackwardConfig kConfig>
struct SsdBackwardPlan {
    // A role that asked for more registers than a block has at the launch would wait forever.
    static_assert(kConfig.inputs_registers() + 2 * kConfig.token_registers() <= 65536 / kConfig.threads() / 8 * 8 * 3);
    static constexpr int kStages = 2;
    struct Stage {
        SwizzledTile x, dy, states[kConfig.state_tiles()], gradients[kConfig.state_tiles()];
    };
    // A head's values for the chunk's tokens. G: sums of δA from the chunk's first token on, in log2.
    struct alignas(16) Factors {
        float gate[kChunk], delta[kChunk];
        float before[kChunk], after[kChunk];  // exp(G) and exp(G_end - G)
        float decay;                          // exp(G_end)
        float D;
    };
    // What readers and writers find of a row tile, a number a token, for the gradients of δ and δA.
    struct alignas(16) Sums {
        float read[kChunk];       // of the state before, by outputs
        float written[kChunk];    // into the state after
        float scaled[kChunk];     // of the token's own δ x
        float across[4][kChunk];  // between tokens before and after each boundary; a row for each warp
        float states[2];          // <E, S>, of two warps
        float D[4];
    };
    SwizzledTile C[kConfig.state_tiles()], B[kConfig.state_tiles()];
    Stage stages[kStages];
    SwizzledTile scores[kStages];  // M' of each row tile
    Factors factors[kStages];
    Sums sums[kStages];
    SsdChunkWork work;
    // mbarriers: who arrives -> who waits. A row tile uses stage (tile % kStages) of everything.
    //     group_full     TMA: C and B -> readers, writers
    //     stage_full     TMA -> readers, writers, inputs
    //     tail_full      TMA, for a chunk whose rows past the sequence are to be cleared -> inputs
    //     factors_full   inputs -> readers, writers
    //     stage_empty    each warp of readers, writers and of the inputs that multiply states -> inputs
    //     scores_full    readers -> writers
    //     sums_full      each of those warps -> inputs
    //     sums_empty     inputs -> those warps
    unsigned long long group_full, tail_full, stage_full[kStages], factors_full[kStages], stage_empty[kStages];
    unsigned long long scores_full[kStages], sums_full[kStages], sums_empty[kStages];
};

}  // namespace gdn_cuda::ssd
