// conv/causal_conv_backward and conv/causal_conv_backward_any on the host: which runs a problem, how rows are cut, and
// their launches.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/causal_conv_backward_plan.cuh>

#include "causal_conv_tile.hpp"

namespace gdn_cuda::conv {

inline Blocks causal_backward_blocks(const CausalProblem& problem, const CausalBackwardArgs& args) {
    return {args.forward.batches * ceil_div(args.forward.channels, causal_tile_config(problem).channels()) * args.cuts, 1, 1};
}

// What both kernels have.
struct CausalBackwardSpec {
    using Config = CausalTileConfig;
    using Args = CausalBackwardArgs;
    static constexpr const char *family = "conv", *config_type = "CausalTileConfig", *args_type = "CausalBackwardArgs";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalTileConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kCausalTileConfigurations, CausalBackwardSharedPlan>(
            config, std::make_index_sequence<kCausalTileConfigurations.size()>());
    }
};
struct CausalBackward : CausalBackwardSpec {
    static constexpr const char* name = "causal_conv_backward";
    static constexpr const char* summary = "gradients of a causal convolution by its input, weights and bias";
};
struct CausalBackwardAny : CausalBackwardSpec {
    static constexpr const char* name = "causal_conv_backward_any";
    static constexpr const char* summary = "the same where rows have several sequences, or states";
};

inline void run_causal_backward(const CausalProblem& problem, const CausalBackwardArgs& args, const Target& target) {
    const Blocks grid = causal_backward_blocks(problem, args);
    if (grid[0] == 0) return;
    const auto why = [&](const auto&) { return explain_causal(problem, fmt::format("{} tiles a block", args.tiles).c_str()); };
    if (problem.sequences || args.grad_behind.values.data != nullptr)
        launch<CausalBackwardAny>(causal_tile_config(problem), args, grid, target, why);
    else
        launch<CausalBackward>(causal_tile_config(problem), args, grid, target, why);
}

// A block takes several tiles, so that fewer sums are added up behind it, where that leaves blocks to spare for every SM.
inline void cut_rows(const CausalProblem& problem, CausalBackwardArgs& args, const jit::DeviceTraits& device) {
    constexpr i64 kMostTiles = 16, kBlocksOfSm = 32;
    const CausalTileConfig config = causal_tile_config(problem);
    const i64 tiles = ceil_div(args.forward.tokens, config.tokens());
    const i64 blocks = tiles * args.forward.batches * ceil_div(args.forward.channels, config.channels());
    args.tiles = static_cast<int>(std::clamp(blocks / (kBlocksOfSm * device.multiprocessors), i64{1}, kMostTiles));
    args.cuts = static_cast<int>(ceil_div(tiles, args.tiles));
}

}  // namespace gdn_cuda::conv
