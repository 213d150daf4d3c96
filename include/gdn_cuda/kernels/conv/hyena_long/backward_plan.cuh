// Configurations, shared memory and arguments of conv/hyena_long_backward and conv/hyena_long_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_long/plan.cuh>

namespace gdn_cuda::conv {

struct HyenaLongBackwardConfig {
    DType io;      // dtype of x1, x2, v and their gradients, and the gradient of y
    int groups;    // groups of 16 states
    bool columns;  // channels are contiguous in memory, in whole vectors

    constexpr bool operator==(const HyenaLongBackwardConfig&) const = default;

    GDN_FIELDS(io, groups, columns)

    // bf16 parts of every value.
    GDN_HOST_DEVICE constexpr int parts() const { return io == DType::f32 ? 3 : 2; }
    // Warps per block: its contiguous channels, or as many as leave its shared memory small enough for every GPU.
    GDN_HOST_DEVICE constexpr int warps() const {
        if (columns) return hyena_columns(io, false);
        return groups == 1 ? 4 : io == DType::f32 ? 1 : 2;
    }
    GDN_HOST_DEVICE constexpr int blocks_of_sm() const { return columns && io != DType::f32 ? 1 : 2; }
    // Tiles of x1, v and the gradient of y in shared memory; with two, the next tile is copied while one is computed.
    GDN_HOST_DEVICE constexpr int buffers() const { return groups == 1 && io != DType::f32 ? 2 : 1; }
    // If there are registers enough.
    GDN_HOST_DEVICE constexpr bool loads_states_ahead() const { return groups == 1 && io != DType::f32; }
    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps(); }
    // Whether the correlation is kept in shared memory during the loop over groups, for which registers do not suffice
    // otherwise.
    GDN_HOST_DEVICE constexpr bool parks_correlation() const { return groups > 1; }
};
struct HyenaLongStatesConfig {
    DType io;
    int groups;
    bool reversed;  // computes gradients of the states before a segment, from those of y; otherwise the states after it, from u
    bool columns;   // channels are contiguous in memory, in whole vectors

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

// Arguments of both kernels. A segment is the tokens of a warp: (batch, channel, segment). fp32 arrays are contiguous.
struct HyenaLongBackwardArgs {
    HyenaLongArgs forward;  // without y, last and added
    HyenaTensor grad;       // gradient of y
    HyenaInitial grad_state;
    HyenaTensor dx1, dx2, dv;
    float* dinitial;    // (batch, channel, state); null without an initial state
    float* dpoles;      // (segment, 2, state): a segment's terms of the gradients of residues and log poles
    float* dbias;       // (segment)
    float* states;      // (batch, channel, tile, state): before each tile, if the segment began with zeros
    float* added;       // (segment, state): the states after a segment that began with zeros
    float* added_back;  // (segment, state): gradients of the states before a segment, without those of later segments
};

// 16 states of a channel: powers of their poles p as right operands, used in both directions of time
// (hyena_long/state_products.cuh).
template <int kParts>
struct HyenaPowerGroup : HyenaDecays {
    alignas(16) unsigned from_tokens[kParts][2][32][4];  // p^(31 - token) [part][eight states][lane][2 k + register]
    alignas(16) unsigned slopes[kParts][2][32][4];       // (31 - token) p^(31 - token), same layout
    alignas(16) unsigned to_tokens[kParts][2][32][4];    // p^token [part][half of the sums][lane][2 (j % 2) + register]
    alignas(8) float gains[kHyenaGroup];                 // R p
};
// What a warp carries from tile to tile for 16 states; per lane [lane][2 eight + i].
struct HyenaCarriedBack {
    alignas(16) float after[32][4];      // gradients of the states after the tile, the same in all lanes of a t
    alignas(16) float dresidues[32][4];  // sums over the lane's rows
    alignas(16) float dpoles[32][4];
};
// A warp's shared memory.
template <HyenaLongBackwardConfig kConfig>
struct HyenaLongBackwardShared {
    union {
        HyenaPowerGroup<kConfig.parts()> groups[kConfig.groups];
        float correlation[kRowTokens][kRowTokens + 1];  // after the last use of the tables
    };
    PairTables<kConfig.parts()> taps, taps_back;
    HyenaStage<kConfig.columns ? kRowTokens : kTileTokens> stage;
    HyenaOwnSlot<bytes_of(kConfig.io)> x2, factors[kConfig.buffers()][3];  // `factors`: x1, v and the gradient of y, for a tile
    HyenaCarriedBack carried[kConfig.groups];
    alignas(16) float parked[kConfig.parks_correlation() ? 8 : 1][32][4];  // [4 m + p][lane][i]
    float first[kHyenaGroup * kConfig.groups];                             // states before the segment
    float last_state_slopes[kHyenaGroup *
                            kConfig.groups];  // terms that the final state's gradient adds to those of the log poles
};
template <HyenaLongBackwardConfig kConfig>
struct HyenaLongBackwardSharedPlan {
    HyenaColumnsShared<kConfig.columns ? kConfig.warps() : 0> dz, u;
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
