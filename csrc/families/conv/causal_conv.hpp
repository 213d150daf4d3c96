// conv/causal_conv and conv/causal_conv_channels_last on the host: when they run, and their launches.
#pragma once

#include <array>
#include <string>

#include "causal_columns.hpp"
#include "causal_conv_problem.hpp"

namespace gdn_cuda::conv {

// Kernels for rows of whole vectors, and these numbers of taps.
constexpr bool has_few_taps(const CausalProblem& problem) {
    return problem.vectors && (problem.taps == 3 || problem.taps == 4);
}
constexpr CausalConvConfig causal_conv_config(const CausalProblem& problem) {
    return {.io = problem.io, .taps = static_cast<int>(problem.taps), .sequences = problem.sequences};
}
constexpr auto every_causal_conv() {
    std::array<CausalConvConfig, 12> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int taps : {3, 4})
            for (const bool sequences : {false, true}) all[count++] = {.io = io, .taps = taps, .sequences = sequences};
    return all;
}
inline constexpr std::array kCausalConvConfigurations = every_causal_conv();

struct CausalConv {
    using Config = CausalConvConfig;
    using Args = CausalArgs;
    static constexpr const char *family = "conv", *name = "causal_conv", *config_type = "CausalConvConfig",
                                *args_type = "CausalArgs";
    static constexpr const char* summary = "causal depthwise convolution of 3 or 4 taps, tokens are neighbours";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalConvConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
    static Blocks blocks(const CausalProblem& problem, const Args& args) {
        const Config config = causal_conv_config(problem);
        const i64 groups = args.batches * ceil_div(args.channels, config.threads() / 32);
        return {groups * ceil_div(args.tokens, config.warp_tokens()), 1, 1};
    }
    static void run(const CausalProblem& problem, const Args& args, const Target& target) {
        const Blocks grid = blocks(problem, args);
        if (grid[0] == 0) return;
        launch<CausalConv>(causal_conv_config(problem), args, grid, target,
                           [&](const auto&) { return explain_causal(problem, "four vectors of tokens a lane"); });
    }
};

struct CausalConvChannelsLast {
    using Config = CausalConvConfig;
    using Args = CausalArgs;
    static constexpr const char *family = "conv", *name = "causal_conv_channels_last", *config_type = "CausalConvConfig",
                                *args_type = "CausalArgs";
    static constexpr const char* summary = "causal depthwise convolution of 3 or 4 taps, channels are neighbours";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalConvConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
    static void run(const CausalProblem& problem, Args args, const Target& target) {
        const Config config = causal_conv_config(problem);
        args.segment = column_segment(args, config.channels(), jit::device_traits(target.ordinal));
        const Blocks grid = column_blocks(args, args.segment, config);
        if (grid[0] == 0) return;
        launch<CausalConvChannelsLast>(config, args, grid, target, [&](const auto&) {
            return explain_causal(problem, fmt::format("{} tokens a warp", args.segment).c_str());
        });
    }
};

}  // namespace gdn_cuda::conv
