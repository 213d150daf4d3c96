// conv/causal_conv_tile on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/tile_plan.cuh>
#include <string>

#include "causal_conv_problem.hpp"

namespace gdn_cuda::conv {

constexpr CausalTileConfig causal_tile_config(const CausalProblem& problem) {
    return {.io = problem.io, .channels_last = problem.channels_last, .reach = problem.taps <= 8 ? 8 : kCausalMostTaps};
}
inline constexpr auto kCausalTileConfigurations = every_configuration<causal_tile_config, 2>({8, kCausalMostTaps});

inline Blocks causal_tile_blocks(const CausalTileConfig& config, i64 batches, i64 channels, i64 tokens) {
    return {batches * ceil_div(channels, config.channels()) * ceil_div(tokens, config.tokens()), 1, 1};
}

struct CausalTile {
    GDN_KERNEL(CausalTile, conv, causal_conv_tile, CausalTileConfig, CausalArgs,
               "causal depthwise convolution of up to 32 taps, any strides");

    static std::span<const Config> configurations() { return kCausalTileConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kCausalTileConfigurations, CausalTileSharedPlan>(config);
    }
    static void run(const CausalProblem& problem, const Args& args, const Target& target) {
        const Config config = causal_tile_config(problem);
        const Blocks blocks = causal_tile_blocks(config, args.batches, args.channels, args.tokens);
        if (blocks[0] == 0) return;
        launch<CausalTile>(config, args, blocks, target, [&](const auto&) {
            return explain_causal(
                problem, fmt::format("tiles of {} channels and {} tokens", config.channels(), config.tokens()).c_str());
        });
    }
};

}  // namespace gdn_cuda::conv
