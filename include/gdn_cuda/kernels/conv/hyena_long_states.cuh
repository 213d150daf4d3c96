// conv/hyena_long_states: what conv/hyena_long_backward has to know of other tokens than its own: states of hyena_long.
//
// A warp walks over its share of one channel's tokens in tiles of 512 and carries the states from zeros (hyena_long_rows.cuh).
// Forward, it writes those before every tile and those behind the share. Reversed, it walks from the end, carries the gradients
// of the states, and writes those before the share; this is launched only where warps share the tokens of a channel.
//
// Bound: memory, 4 bytes a token in bf16 (x1 and v, or the gradient of y and x2) and S / 128 for the states.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_long_rows.cuh>

namespace gdn_cuda::conv {

template <HyenaLongStatesConfig kConfig>
__device__ __forceinline__ void walk_states(const HyenaLongBackwardArgs& args, HyenaLongStatesShared<kConfig>& shared,
                                            const HyenaShare& share) {
    using T = Storage<kConfig.io>;
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
    ToeplitzTile<T> x, y;
    const auto load = [&](int tile) {
        const auto each = [&](ToeplitzTile<T>& to, const HyenaTensor& from) {
            to.load(HyenaRow<T>(from, share.batch, share.column), tile, share.end, forward.vectors, shared.stage);
        };
        each(x, kConfig.reversed ? args.grad : forward.x1);
        each(y, kConfig.reversed ? forward.x2 : forward.v);
    };
    int tile = kConfig.reversed ? share.first + (tiles - 1) * kTileTokens : share.first;
    if (tiles > 0) load(tile);
#pragma unroll 1
    for (int i = 0; i < tiles; ++i, tile += kStep) {
        if constexpr (!kConfig.reversed) write(args.states + (row * row_tiles + tile / kTileTokens) * S);
        float product[2][kEight];
        multiply(product, x, y);
        const TileParts<kParts> parts = TileParts<kParts>::of(product);
        if (i + 1 < tiles) load(tile + kStep);
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
__global__ void __launch_bounds__(kConfig.threads(), kConfig.io == DType::f32 ? 2 : 3)
    hyena_long_states(const __grid_constant__ HyenaLongBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const i64 number = static_cast<i64>(blockIdx.x) * kConfig.warps() + warp;
    const HyenaShare share = HyenaShare::of(args.forward, number, args.forward.channels);
    if (!share.exists(args.forward)) return;
    walk_states<kConfig>(args, reinterpret_cast<HyenaLongStatesSharedPlan<kConfig>*>(memory)->warps[warp], share);
}

}  // namespace gdn_cuda::conv
