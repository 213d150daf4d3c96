// conv/causal_conv and conv/causal_conv_channels_last on the host: which problems they run, and the launches.
#pragma once

#include <array>
#include <string>

#include "causal_channels_last.hpp"
#include "causal_conv_problem.hpp"

namespace gdn_cuda::conv {

// The kernels for few taps run rows of whole vectors. A lane's tokens see its own vector and the previous lane's.
constexpr int kFewTaps = 8;
constexpr bool fits_vector(DType io, bool channels_last, i64 taps) {
    return channels_last || taps <= 4 || bytes_of(io) == 2;
}
constexpr bool has_few_taps(const CausalProblem& problem) {
    return problem.vectors && problem.taps >= 2 && problem.taps <= kFewTaps &&
           fits_vector(problem.io, problem.channels_last, problem.taps);
}
constexpr CausalConvConfig causal_conv_config(const CausalProblem& problem) {
    const int taps = problem.taps > 4 ? kFewTaps : problem.taps == 4 ? 4 : 3;
    return {.io = problem.io, .taps = taps, .sequences = problem.sequences};
}
constexpr CausalConvConfig with_index(CausalConvConfig config, const CausalSequenceArgs& sequences) {
    config.indices = sequences.seq_idx.data != nullptr;
    return config;
}
template <bool kChannelsLast>
constexpr auto every_causal_conv() {
    std::array<CausalConvConfig, kChannelsLast ? 27 : 24> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int taps : {3, 4, kFewTaps}) {
            if (!fits_vector(io, kChannelsLast, taps)) continue;
            all[count++] = {.io = io, .taps = taps, .sequences = false};
            all[count++] = {.io = io, .taps = taps, .sequences = true};
            all[count++] = {.io = io, .taps = taps, .sequences = true, .indices = true};
        }
    return all;
}
inline constexpr auto kCausalRowsConfigurations = every_causal_conv<false>();
inline constexpr auto kCausalColumnsConfigurations = every_causal_conv<true>();

struct CausalConv {
    GDN_KERNEL(CausalConv, conv, causal_conv, CausalConvConfig, CausalArgs,
               "causal depthwise convolution of 2 to 8 taps, tokens contiguous");

    static std::span<const Config> configurations() { return kCausalRowsConfigurations; }
    static int threads(const Config& config) { return config.row_threads(); }
    static int shared_bytes(const Config&) { return 0; }
    static Blocks blocks(const CausalProblem& problem, const Args& args) {
        const Config config = with_index(causal_conv_config(problem), args.sequences);
        const i64 groups = args.batches * ceil_div(args.channels, config.row_threads() / 32);
        return {groups * ceil_div(args.tokens, config.warp_tokens()), 1, 1};
    }
    static void run(const CausalProblem& problem, const Args& args, const Target& target) {
        const Blocks grid = blocks(problem, args);
        if (grid[0] == 0) return;
        launch<CausalConv>(with_index(causal_conv_config(problem), args.sequences), args, grid, target,
                           [&](const auto&) { return explain_causal(problem, "four vectors of tokens a lane"); });
    }
};

struct CausalConvChannelsLast {
    GDN_KERNEL(CausalConvChannelsLast, conv, causal_conv_channels_last, CausalConvConfig, CausalArgs,
               "causal depthwise convolution of 2 to 8 taps, channels contiguous");

    static std::span<const Config> configurations() { return kCausalColumnsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
    static void run(const CausalProblem& problem, Args args, const Target& target) {
        const Config config = with_index(causal_conv_config(problem), args.sequences);
        const int longest = config.sequences ? kLongestSegment : longest_without_sequences(config.io, config.taps);
        args.segment = column_segment(args, config.channels(), jit::device_traits(target.ordinal), longest);
        const Blocks grid = column_blocks(args, args.segment, config);
        if (grid[0] == 0) return;
        launch<CausalConvChannelsLast>(config, args, grid, target, [&](const auto&) {
            return explain_causal(problem, fmt::format("{} tokens a warp", args.segment).c_str());
        });
    }
};

}  // namespace gdn_cuda::conv
