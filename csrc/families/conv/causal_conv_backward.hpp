// conv/causal_conv_backward and conv/causal_conv_backward_any on the host: which runs a problem, how rows are split, and
// their launches.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/causal_conv_backward/plan.cuh>

#include "causal_conv.hpp"
#include "causal_conv_tile.hpp"

namespace gdn_cuda::conv {

inline Blocks causal_backward_blocks(const CausalProblem& problem, const CausalBackwardArgs& args) {
    return {args.forward.batches * ceil_div(args.forward.channels, causal_tile_config(problem).channels()) * args.splits, 1, 1};
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

// ---- Few taps

constexpr bool has_few_taps_backward(const CausalProblem& problem, const CausalBackwardArgs& args) {
    return has_few_taps(problem) && args.grad_vectors;
}
constexpr CausalConvConfig causal_backward_config(const CausalProblem& problem, const CausalBackwardArgs& args) {
    CausalProblem of_both = problem;
    of_both.sequences |= args.grad_states.values.data != nullptr;
    return with_index(causal_conv_config(of_both), args.forward.sequences);
}

// What both kernels for few taps have.
struct CausalFewTapsBackward {
    using Config = CausalConvConfig;
    using Args = CausalBackwardArgs;
    static constexpr const char *family = "conv", *config_type = "CausalConvConfig", *args_type = "CausalBackwardArgs";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct CausalBackwardRows : CausalFewTapsBackward {
    static constexpr const char* name = "causal_conv_backward_rows";
    static constexpr const char* summary = "gradients of a causal convolution of few taps, tokens are neighbours";

    static std::span<const Config> configurations() { return kCausalRowsConfigurations; }
    static Blocks blocks(const Config& config, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, config.threads() / 32) * args.splits, 1, 1};
    }
    // Steps of a warp: what a segment begins with is spread over them, as long as every SM has warps to spare.
    static void split(const Config& config, Args& args, const jit::DeviceTraits& device) {
        constexpr i64 kWarpsOfSm = 160;
        const i64 rows = i64{args.forward.batches} * args.forward.channels;
        const i64 steps = ceil_div(args.forward.tokens, config.step_tokens());
        const i64 most = std::clamp(steps * rows / (kWarpsOfSm * device.multiprocessors), i64{1}, i64{config.most_steps()});
        const i64 pieces = std::max(ceil_div(steps, most), i64{1});
        args.tiles = static_cast<int>(std::max(ceil_div(steps, pieces), i64{1}));  // pieces of much the same length
        args.splits = static_cast<int>(ceil_div(steps, args.tiles));
    }
};
struct CausalBackwardColumns : CausalFewTapsBackward {
    static constexpr const char* name = "causal_conv_backward_columns";
    static constexpr const char* summary = "gradients of a causal convolution of few taps, channels are neighbours";

    static std::span<const Config> configurations() { return kCausalColumnsConfigurations; }
    static Blocks blocks(const Config& config, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, config.channels_backward()) * args.splits, 1, 1};
    }
    // Tokens of a warp: the longest segment that leaves every SM warps to spare.
    static void split(const Config& config, Args& args, const jit::DeviceTraits& device) {
        constexpr i64 kBlocksOfSm = 16;
        constexpr int kShortest = 16;
        const i64 groups = args.forward.batches * ceil_div(args.forward.channels, config.channels_backward());
        const int warps = config.threads() / 32;
        int segment = config.longest_segment();
        while (segment > kShortest &&
               groups * ceil_div(args.forward.tokens, segment * warps) < kBlocksOfSm * device.multiprocessors)
            segment /= 2;
        args.forward.segment = args.tiles = segment;
        args.splits = static_cast<int>(ceil_div(args.forward.tokens, segment * warps));
    }
};

// ---- The choice

inline void run_causal_backward(const CausalProblem& problem, const CausalBackwardArgs& args, const Target& target) {
    if (has_few_taps_backward(problem, args)) {
        const CausalConvConfig config = causal_backward_config(problem, args);
        const char* const what = problem.channels_last ? "tokens" : "steps";
        const auto why = [&](const auto&) {
            return explain_causal(problem, fmt::format("{} {} a warp", args.tiles, what).c_str());
        };
        const Blocks grid =
            problem.channels_last ? CausalBackwardColumns::blocks(config, args) : CausalBackwardRows::blocks(config, args);
        if (grid[0] == 0) return;
        if (problem.channels_last)
            launch<CausalBackwardColumns>(config, args, grid, target, why);
        else
            launch<CausalBackwardRows>(config, args, grid, target, why);
        return;
    }
    const Blocks grid = causal_backward_blocks(problem, args);
    if (grid[0] == 0) return;
    const auto why = [&](const auto&) { return explain_causal(problem, fmt::format("{} tiles a block", args.tiles).c_str()); };
    if (problem.sequences || args.grad_states.values.data != nullptr)
        launch<CausalBackwardAny>(causal_tile_config(problem), args, grid, target, why);
    else
        launch<CausalBackward>(causal_tile_config(problem), args, grid, target, why);
}

// A block takes several tiles, so that fewer sums are added up final_states it, where that leaves blocks to spare for every SM.
inline void split_rows(const CausalProblem& problem, CausalBackwardArgs& args, const jit::DeviceTraits& device) {
    if (has_few_taps_backward(problem, args)) {
        const CausalConvConfig of_few = causal_backward_config(problem, args);
        return problem.channels_last ? CausalBackwardColumns::split(of_few, args, device)
                                     : CausalBackwardRows::split(of_few, args, device);
    }
    constexpr i64 kMostTiles = 16, kBlocksOfSm = 32;
    const CausalTileConfig config = causal_tile_config(problem);
    const i64 tiles = ceil_div(args.forward.tokens, config.tokens());
    const i64 blocks = tiles * args.forward.batches * ceil_div(args.forward.channels, config.channels());
    args.tiles = static_cast<int>(std::clamp(blocks / (kBlocksOfSm * device.multiprocessors), i64{1}, kMostTiles));
    args.splits = static_cast<int>(ceil_div(tiles, args.tiles));
}

}  // namespace gdn_cuda::conv
