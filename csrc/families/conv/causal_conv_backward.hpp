// conv/causal_conv_backward on the host: which configuration runs a problem, how rows are cut, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/causal_conv_backward_plan.cuh>

#include "causal_conv_tile.hpp"

namespace gdn_cuda::conv {

struct CausalBackward {
    using Config = CausalTileConfig;
    using Args = CausalBackwardArgs;
    static constexpr const char *family = "conv", *name = "causal_conv_backward", *config_type = "CausalTileConfig",
                                *args_type = "CausalBackwardArgs";
    static constexpr const char* summary = "gradients of a causal convolution by its input, weights and bias";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalTileConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kCausalTileConfigurations, CausalBackwardSharedPlan>(
            config, std::make_index_sequence<kCausalTileConfigurations.size()>());
    }
    static Blocks blocks(const CausalProblem& problem, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, causal_tile_config(problem).channels()) * args.cuts, 1,
                1};
    }
    static void run(const CausalProblem& problem, const Args& args, const Target& target) {
        const Blocks grid = blocks(problem, args);
        if (grid[0] == 0) return;
        launch<CausalBackward>(causal_tile_config(problem), args, grid, target, [&](const auto&) {
            return explain_causal(problem, fmt::format("{} tiles a block", args.tiles).c_str());
        });
    }
};

// A block takes several tiles, so that fewer sums are added up behind it, where that leaves blocks enough for every GPU.
inline void cut_rows(const CausalProblem& problem, CausalBackwardArgs& args) {
    constexpr i64 kMostTiles = 16, kBlocks = 4096;
    const CausalTileConfig config = causal_tile_config(problem);
    const i64 tiles = ceil_div(args.forward.tokens, config.tokens());
    const i64 blocks = tiles * args.forward.batches * ceil_div(args.forward.channels, config.channels());
    args.tiles = static_cast<int>(std::clamp(blocks / kBlocks, i64{1}, kMostTiles));
    args.cuts = static_cast<int>(ceil_div(tiles, args.tiles));
}

}  // namespace gdn_cuda::conv
