// Configurations, shared memory and arguments of conv/hyena_long_backward and conv/hyena_long_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_long/plan.cuh>

namespace gdn_cuda::conv {

struct HyenaLongBackwardConfig {
    DType io;      // x1, x2, v and their gradients, the gradient of y
    int groups;    // of 16 states
    bool columns;  // channels are neighbours in memory, in whole vectors

    constexpr bool operator==(const HyenaLongBackwardConfig&) const = default;

    GDN_FIELDS(io, groups, columns)

    // bf16 parts of every number.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    // Of a block: its neighbouring channels, or such that its shared memory fits every GPU.
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, false);
        return groups == 1 ? 4 : io == DType::f32 ? 1 : 2;
    }
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const { return columns && io != DType::f32 ? 1 : 2; }
    // Tiles of x1, v and the gradient of y in shared memory: the next one is copied while one is computed, where there is
    // space.
    GDN_HOST_DEVICE constexpr int buffers() const { return groups == 1 && io != DType::f32 ? 2 : 1; }
    // Where registers suffice.
    GDN_HOST_DEVICE constexpr bool loads_states_ahead() const { return groups == 1 && io != DType::f32; }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Registers do not suffice for a loop over groups and for the correlation: it waits in shared memory.
    GDN_HOST_DEVICE constexpr bool parks_correlation() const { return groups > 1; }
};
struct HyenaLongStatesConfig {
    DType io;
    int groups;
    bool reversed;  // gradients of the states before a share, from those of y; otherwise the states behind it, from u
    bool columns;   // channels are neighbours in memory, in whole vectors

    constexpr bool operator==(const HyenaLongStatesConfig&) const = default;

    GDN_FIELDS(io, groups, reversed, columns)

    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, false);
        return groups > 1 ? 2 : 4;
    }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const { return columns || io == DType::f32 ? 2 : 3; }
};

// Of both kernels. A share is the tokens of a warp: (batch, channel, segment). All that is fp32 is contiguous.
struct HyenaLongBackwardArgs {
    HyenaLongArgs forward;  // without y, last and added
    HyenaTensor grad;       // of y
    HyenaInitial grad_state;
    HyenaTensor of_x1, of_x2, of_v;
    float* of_initial;  // (batch, channel, state); null without an initial state
    float* of_poles;    // (share, 2, state): what a share adds to the gradients of residues and log poles
    float* of_bias;     // (share)
    float* states;      // (batch, channel, tile, state): before each tile, as if the share began with zeros
    float* added;       // (share, state): the states behind a share that began with zeros
    float* added_back;  // (share, state): gradients of the states before a share, behind which nothing follows
};

// 16 states of a channel: powers of their poles p as right operands, which both directions of time take
// (hyena_long/state_products.cuh).
template <int kParts>
struct HyenaPowerGroup : HyenaDecays {
    alignas(16) unsigned from_tokens[kParts][2][32][4];  // p^(31 - token); [part][eight states][lane][2 k + register]
    alignas(16) unsigned slopes[kParts][2][32][4];       // (31 - token) p^(31 - token), likewise
    alignas(16) unsigned to_tokens[kParts][2][32][4];    // p^token; [part][half of the sums][lane][2 (j % 2) + register]
    alignas(8) float gains[kHyenaGroup];                 // R p
};
// What a warp carries from tile to tile of 16 states, each lane its own: [lane][2 eight + i].
struct HyenaCarriedBack {
    alignas(16) float behind[32][4];       // gradients of the states behind the tile, the same in all lanes of a t
    alignas(16) float of_residues[32][4];  // sums over the lane's rows
    alignas(16) float of_poles[32][4];
};
// Of a warp.
template <HyenaLongBackwardConfig kConfig>
struct HyenaLongBackwardShared {
    union {
        HyenaPowerGroup<kConfig.parts()> groups[kConfig.groups];
        float correlation[kRowTokens][kRowTokens + 1];  // once the tables are not needed any more
    };
    PairTables<kConfig.parts()> taps, taps_back;
    HyenaStage<kConfig.columns ? kRowTokens : kTileTokens> stage;
    HyenaOwnSlot<bytes_of(kConfig.io)> x2, factors[kConfig.buffers()][3];  // of a tile: x1, v and the gradient of y
    HyenaCarriedBack carried[kConfig.groups];
    alignas(16) float parked[kConfig.parks_correlation() ? 8 : 1][32][4];  // [4 m + p][lane][i]
    float first[kHyenaGroup * kConfig.groups];                             // states before the share
    float of_last[kHyenaGroup * kConfig.groups];  // what the gradient of the last state adds to those of the log poles
};
template <HyenaLongBackwardConfig kConfig>
struct HyenaLongBackwardSharedPlan {
    HyenaColumnsShared<kConfig.columns ? kConfig.warps() : 0> of_dz, of_u;
    HyenaLongBackwardShared<kConfig> warps[kConfig.warps()];
};
template <HyenaLongStatesConfig kConfig>
struct HyenaLongStatesShared {
    HyenaPowerGroup<kConfig.parts()> groups[kConfig.groups];
    HyenaOwnSlot<bytes_of(kConfig.io)> factors[2];
};
template <HyenaLongStatesConfig kConfig>
struct HyenaLongStatesSharedPlan : HyenaColumnsShared<kConfig.columns ? kConfig.warps() : 0> {
    HyenaLongStatesShared<kConfig> warps[kConfig.warps()];
};

}  // namespace gdn_cuda::conv
