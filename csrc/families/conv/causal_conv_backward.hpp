// conv/causal_conv_backward, conv/causal_conv_backward_rows and conv/causal_conv_backward_columns on the host: which of them
// runs a problem, how rows are split among blocks, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>

#include "causal_conv.hpp"
#include "causal_conv_tile.hpp"

namespace gdn_cuda::conv {

// ---- Any number of taps

constexpr CausalBackwardConfig causal_tile_backward_config(const CausalProblem& problem, const CausalBackwardArgs& args) {
    const CausalTileConfig tile = causal_tile_config(problem);
    return {.io = tile.io,
            .channels_last = tile.channels_last,
            .reach = tile.reach,
            .sequences = problem.sequences || args.grad_states.values.data != nullptr};
}
inline constexpr auto kCausalBackwardConfigurations = [] {
    std::array<CausalBackwardConfig, 2 * kCausalTileConfigurations.size()> all{};
    size_t count = 0;
    for (const bool sequences : {false, true})
        for (const CausalTileConfig& tile : kCausalTileConfigurations)
            all[count++] = {.io = tile.io, .channels_last = tile.channels_last, .reach = tile.reach, .sequences = sequences};
    return all;
}();

struct CausalBackward {
    GDN_KERNEL(CausalBackward, conv, causal_conv_backward, CausalBackwardConfig, CausalBackwardArgs,
               "gradients of a causal convolution of up to 32 taps, any strides");

    static std::span<const Config> configurations() { return kCausalBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kCausalBackwardConfigurations, CausalBackwardSharedPlan>(config);
    }
    static Blocks blocks(const Config& config, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, config.channels()) * args.splits, 1, 1};
    }
    // A block iterates over several tiles, so that fewer partial sums are written, as long as every SM has blocks to spare.
    static void split(const Config& config, Args& args, const jit::DeviceTraits& device) {
        constexpr i64 kMostTiles = 16, kBlocksOfSm = 32;
        const i64 tiles = ceil_div(args.forward.tokens, config.tokens());
        const i64 blocks = tiles * args.forward.batches * ceil_div(args.forward.channels, config.channels());
        args.tiles = static_cast<int>(std::clamp(blocks / (kBlocksOfSm * device.multiprocessors), i64{1}, kMostTiles));
        args.splits = static_cast<int>(ceil_div(tiles, args.tiles));
    }
};

// ---- Few taps

constexpr bool has_few_taps_backward(const CausalProblem& problem, const CausalBackwardArgs& args) {
    return has_few_taps(problem) && args.grad_vectors;
}
// Whether a problem of several sequences for others is one of rows with an initial state for conv/causal_conv_backward_rows.
constexpr bool is_rows_from_states(const CausalProblem& problem, const CausalBackwardArgs& args) {
    const CausalSequenceArgs& sequences = args.forward.sequences;
    return !problem.channels_last && sequences.cu_seqlens.data == nullptr && sequences.seq_idx.data == nullptr &&
           sequences.initial.values.data != nullptr && sequences.initial.values.type == problem.io &&
           args.grad_states.values.data == nullptr;
}
constexpr CausalConvConfig causal_few_taps_backward_config(const CausalProblem& problem, const CausalBackwardArgs& args) {
    CausalProblem with_states = problem;
    with_states.sequences |= args.grad_states.values.data != nullptr;
    CausalConvConfig config = with_index(causal_conv_config(with_states), args.forward.sequences);
    if (is_rows_from_states(problem, args)) config.sequences = false, config.from_state = true;
    return config;
}
inline constexpr auto kCausalRowsBackwardConfigurations = [] {
    std::array<CausalConvConfig, kCausalRowsConfigurations.size() * 4 / 3> all{};
    size_t count = 0;
    for (CausalConvConfig config : kCausalRowsConfigurations) {
        all[count++] = config;
        if (config.sequences) continue;
        config.from_state = true;
        all[count++] = config;
    }
    return all;
}();

// Base of the Specs of both kernels for few taps.
struct CausalFewTapsBackward {
    using Config = CausalConvConfig;
    using Args = CausalBackwardArgs;

    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct CausalBackwardRows : CausalFewTapsBackward {
    GDN_KERNEL(CausalBackwardRows, conv, causal_conv_backward_rows, CausalConvConfig, CausalBackwardArgs,
               "gradients of a causal convolution of few taps, tokens contiguous");

    static std::span<const Config> configurations() { return kCausalRowsBackwardConfigurations; }
    static Blocks blocks(const Config& config, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, config.threads() / 32) * args.splits, 1, 1};
    }
    // A segment of many steps amortizes its setup; segments are as long as leaves every SM warps to spare.
    static void split(const Config& config, Args& args, const jit::DeviceTraits& device) {
        constexpr i64 kWarpsOfSm = 160;
        const i64 rows = i64{args.forward.batches} * args.forward.channels;
        const i64 steps = ceil_div(args.forward.tokens, config.step_tokens());
        const i64 most = std::clamp(steps * rows / (kWarpsOfSm * device.multiprocessors), i64{1}, i64{config.most_steps()});
        const i64 segments = std::max(ceil_div(steps, most), i64{1});
        args.tiles = static_cast<int>(std::max(ceil_div(steps, segments), i64{1}));  // segments of nearly equal length
        args.splits = static_cast<int>(ceil_div(steps, args.tiles));
    }
};
struct CausalBackwardColumns : CausalFewTapsBackward {
    GDN_KERNEL(CausalBackwardColumns, conv, causal_conv_backward_columns, CausalConvConfig, CausalBackwardArgs,
               "gradients of a causal convolution of few taps, channels contiguous");

    static std::span<const Config> configurations() { return kCausalColumnsConfigurations; }
    static Blocks blocks(const Config& config, const Args& args) {
        return {args.forward.batches * ceil_div(args.forward.channels, config.channels_backward()) * args.splits, 1, 1};
    }
    // Tokens per warp: the longest segment that leaves every SM warps to spare.
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

// Calls visit.operator()<Spec>(config, what a warp or block iterates over) for the kernel that runs a problem.
void with_causal_backward(const CausalProblem& problem, const CausalBackwardArgs& args, auto&& visit) {
    if (!has_few_taps_backward(problem, args))
        visit.template operator()<CausalBackward>(causal_tile_backward_config(problem, args), "tiles a block");
    else if (problem.channels_last)
        visit.template operator()<CausalBackwardColumns>(causal_few_taps_backward_config(problem, args), "tokens a warp");
    else
        visit.template operator()<CausalBackwardRows>(causal_few_taps_backward_config(problem, args), "steps a warp");
}

inline void run_causal_backward(const CausalProblem& problem, const CausalBackwardArgs& args, const Target& target) {
    with_causal_backward(problem, args, [&]<class Spec>(const typename Spec::Config& config, const char* unit) {
        const Blocks grid = Spec::blocks(config, args);
        if (grid[0] == 0) return;
        launch<Spec>(config, args, grid, target,
                     [&](const auto&) { return explain_causal(problem, fmt::format("{} {}", args.tiles, unit).c_str()); });
    });
}

// Sets how rows are split among blocks.
inline void split_rows(const CausalProblem& problem, CausalBackwardArgs& args, const jit::DeviceTraits& device) {
    with_causal_backward(problem, args, [&]<class Spec>(const typename Spec::Config& config, const char*) {
        Spec::split(config, args, device);
    });
}

}  // namespace gdn_cuda::conv
