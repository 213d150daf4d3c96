// conv/hyena_long_states: the states of hyena_long that conv/hyena_long_backward needs of tokens outside of its tiles.
//
// A warp iterates over its segment of one channel's tokens in tiles of 512 and carries the states, starting from zeros
// (hyena_long/state_products.cuh). Forward, it writes the states before every tile and those after the segment. Reversed, it
// starts at the end, carries the gradients of the states, and writes those before the segment; this is launched only if a
// channel's tokens are split among warps. If channels are contiguous in memory, the warps of a block have adjacent channels,
// as in conv/hyena_long_backward.
//
// Bound: memory, 4 bytes a token in bf16 (x1 and v, or the gradient of y and x2) and S / 128 for the states.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile_prefetch.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/state_products.cuh>

namespace gdn_cuda::conv {

template <HyenaLongStatesConfig kConfig>
__device__ __forceinline__ void compute_states(const HyenaLongBackwardArgs& args, HyenaLongStatesShared<kConfig>& shared,
                                               const auto& access, const HyenaSegment& segment) {
    constexpr int kParts = kConfig.parts(), kStep = kConfig.reversed ? -kTileTokens : kTileTokens;
    const HyenaLongArgs& forward = args.forward;
    const int lane = lane_of_warp(), S = forward.states, tiles = (segment.end - segment.first + kTileTokens - 1) / kTileTokens;
    const i64 row = static_cast<i64>(segment.batch) * forward.channels + segment.column;
    const i64 row_tiles = (static_cast<i64>(forward.tokens) + kTileTokens - 1) / kTileTokens;

    const HyenaPoles poles(forward, segment.column);
    LaneStates carried[kConfig.groups] = {};
    const auto write = [&](float* to) {
        if (row_of_lane() != 0) return;
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group)
            for_states(group, S, [&](int eight, int i, int state) { to[state] = carried[group][eight][i]; });
    };
    float* const added = (kConfig.reversed ? args.added_back : args.added) + (row * forward.segments + segment.index) * S;
    if (kConfig.reversed && forward.until_result >= 0) {
        const bool decays = poles.decay_over(segment.first);
        if (kConfig.columns ? !__syncthreads_or(!decays) : decays) return write(added);
    }
    for (int group = 0; group < kConfig.groups; ++group) fill_powers(shared.groups[group], poles, group, lane);
    __syncwarp();
    const auto load = [&](int tile) {
        fetch(shared.factors[0], access, kConfig.reversed ? args.grad : forward.x1, tile);
        fetch(shared.factors[1], access, kConfig.reversed ? forward.x2 : forward.v, tile);
        cp_async_fence();
    };
    int tile = kConfig.reversed ? segment.first + (tiles - 1) * kTileTokens : segment.first;
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
        access.sync();
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group) {
            if (group * kHyenaGroup >= S) continue;
            RowSums added = {};
            RowStates before;
            add_tokens<kConfig.reversed>(added, parts, shared.groups[group].from_tokens);
            if constexpr (kConfig.reversed) multiply_by_gains(added, shared.groups[group].gains);
            scan_rows<kConfig.reversed>(before, added, carried[group], shared.groups[group]);
        }
    }
    write(added);
}

template <HyenaLongStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_of_sm())
    hyena_long_states(const __grid_constant__ HyenaLongBackwardArgs args) {
    using T = Storage<kConfig.io>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaLongStatesSharedPlan<kConfig>*>(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HyenaSegment segment = hyena_segment<kConfig.columns, kConfig.warps()>(args.forward);
    if (!segment.exists(args.forward)) return;
    if constexpr (kConfig.columns) {
        const HyenaTileColumns<T, kConfig.warps()> access{shared, segment.batch, segment.column - warp, args.forward.channels,
                                                          segment.end};
        compute_states<kConfig>(args, shared.warps[warp], access, segment);
    } else {
        auto& nowhere =
            reinterpret_cast<HyenaStage<kTileTokens>&>(shared.warps[warp]);  // only stores use it, and this kernel has none
        const HyenaTileRows<T> access{nowhere, segment.batch, segment.column, segment.end, args.forward.vectors};
        compute_states<kConfig>(args, shared.warps[warp], access, segment);
    }
}

}  // namespace gdn_cuda::conv
