// conv/hyena_long_states: what conv/hyena_long_backward has to know of other tokens than its own: states of hyena_long.
//
// A warp walks over its share of one channel's tokens in tiles of 512 and carries the states from zeros
// (hyena_long/state_products.cuh). Forward, it writes those before every tile and those behind the share. Reversed, it walks
// from the end, carries the gradients of the states, and writes those before the share; this is launched only where warps share
// the tokens of a channel. Channels that are neighbours in memory are walked over together, as in conv/hyena_long_backward.
//
// Bound: memory, 4 bytes a token in bf16 (x1 and v, or the gradient of y and x2) and S / 128 for the states.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile_prefetch.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/state_products.cuh>

namespace gdn_cuda::conv {

template <HyenaLongStatesConfig kConfig>
__device__ __forceinline__ void walk_states(const HyenaLongBackwardArgs& args, HyenaLongStatesShared<kConfig>& shared,
                                            const auto& access, const HyenaShare& share) {
    constexpr int kParts = kConfig.parts(), kStep = kConfig.reversed ? -kTileTokens : kTileTokens;
    const HyenaLongArgs& forward = args.forward;
    const int lane = lane_of_warp(), S = forward.states, tiles = (share.end - share.first + kTileTokens - 1) / kTileTokens;
    const i64 row = static_cast<i64>(share.batch) * forward.channels + share.column;
    const i64 row_tiles = (static_cast<i64>(forward.tokens) + kTileTokens - 1) / kTileTokens;

    const HyenaPoles poles(forward, share.column);
    for (int group = 0; group < kConfig.groups; ++group) fill_powers(shared.groups[group], poles, group, lane);
    __syncwarp();

    LaneStates carried[kConfig.groups] = {};
    const auto write = [&](float* to) {
        if (row_of_lane() != 0) return;
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group)
            for_states(group, S, [&](int eight, int i, int state) { to[state] = carried[group][eight][i]; });
    };
    const auto load = [&](int tile) {
        fetch(shared.factors[0], access, kConfig.reversed ? args.grad : forward.x1, tile);
        fetch(shared.factors[1], access, kConfig.reversed ? forward.x2 : forward.v, tile);
        cp_async_fence();
    };
    int tile = kConfig.reversed ? share.first + (tiles - 1) * kTileTokens : share.first;
    if (tiles > 0) load(tile);
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, tile += kStep) {
        if constexpr (!kConfig.reversed) write(args.states + (row * row_tiles + tile / kTileTokens) * S);
        float product[kOwn];
        cp_async_wait<0>();
        __syncwarp();
        multiply(product, read(access, shared.factors[0]), read(access, shared.factors[1]));
        __syncwarp();
        if (i + 1 < tiles) load(tile + kStep);
        access.to_row(product);
        const TileParts<kParts> parts = parts_of_row<kParts>(product);
        access.meet();
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group) {
            if (group * kHyenaGroup >= S) continue;
            RowSums added = {};
            RowStates before;
            add_tokens<kConfig.reversed>(added, parts, shared.groups[group].from_tokens);
            if constexpr (kConfig.reversed) multiply_by_gains(added, shared.groups[group].gains);
            walk_rows<kConfig.reversed>(before, added, carried[group], shared.groups[group]);
        }
    }
    write((kConfig.reversed ? args.added_back : args.added) + (row * forward.segments + share.segment) * S);
}

template <HyenaLongStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_of_sm())
    hyena_long_states(const __grid_constant__ HyenaLongBackwardArgs args) {
    using T = Storage<kConfig.io>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaLongStatesSharedPlan<kConfig>*>(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HyenaShare share = hyena_share<kConfig.columns, kConfig.warps()>(args.forward);
    if (!share.exists(args.forward)) return;
    if constexpr (kConfig.columns) {
        const HyenaTileColumns<T, kConfig.warps()> access{shared, share.batch, share.column - warp, args.forward.channels,
                                                          share.end};
        walk_states<kConfig>(args, shared.warps[warp], access, share);
    } else {
        auto& nowhere = reinterpret_cast<HyenaStage<kTileTokens>&>(shared.warps[warp]);  // is for stores: there are none
        const HyenaTileRows<T> access{nowhere, share.batch, share.column, share.end, args.forward.vectors};
        walk_states<kConfig>(args, shared.warps[warp], access, share);
    }
}

}  // namespace gdn_cuda::conv
