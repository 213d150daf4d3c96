// conv/hyena_medium on the host: the configuration and split of a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_medium/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "hyena_segments.hpp"

namespace gdn_cuda::conv {

struct HyenaMediumProblem {
    DType io;
    i64 taps;
    bool columns;  // channels are contiguous, in whole vectors
};

constexpr HyenaMediumConfig hyena_medium_config(const HyenaMediumProblem& problem) {
    return {.io = problem.io,
            .taps = problem.taps <= kHyenaMediumFewTaps ? kHyenaMediumFewTaps : kHyenaMediumMostTaps,
            .columns = problem.columns};
}
constexpr std::array<HyenaMediumConfig, 12> every_hyena_medium_configuration() {
    std::array<HyenaMediumConfig, 12> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int taps : {1, kHyenaMediumMostTaps})
            for (const bool columns : {false, true}) all[count++] = hyena_medium_config({io, taps, columns});
    return all;
}
inline constexpr std::array kHyenaMediumConfigurations = every_hyena_medium_configuration();

inline std::string explain_hyena_medium(const HyenaMediumConfig& config, int segment_tokens) {
    return fmt::format("up to {} taps, a warp for each channel and {} tokens{}", config.taps, segment_tokens,
                       config.columns ? ", blocks of adjacent channels" : "");
}

// Blocks of adjacent channels, one on an SM. A block begins with its taps and a tile that nothing precedes, in the time of one
// and a half tiles.
constexpr HyenaSplit hyena_medium_split_of_columns(int warps, i64 rows, i64 tokens, int least,
                                                   const jit::DeviceTraits& device) {
    constexpr int kMostWaves = 6, kBegin = kTileTokens * 3 / 2;
    return hyena_split_by_waves(rows, tokens, kTileTokens, least, i64{warps} * std::max(device.multiprocessors, 1), kMostWaves,
                                kBegin);
}

struct HyenaMedium {
    GDN_KERNEL(HyenaMedium, conv, hyena_medium, HyenaMediumConfig, HyenaArgs,
               "gated convolution of at most 1024 taps on tensor cores", .uses_cutlass = true);

    static constexpr int kWarpsAnSm = 64;  // per launch: a few waves, so that the last one is short

    static std::span<const Config> configurations() { return kHyenaMediumConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaMediumConfigurations, HyenaMediumSharedPlan>(config);
    }
    // Tiles of contiguous channels need more shared memory than some GPUs have. There, and where channels are not whole
    // vectors, elements are loaded one by one.
    static Config config_on(HyenaMediumProblem problem, const jit::DeviceTraits& device) {
        problem.columns = problem.columns && shared_bytes(hyena_medium_config(problem)) <= device.shared_bytes_per_block;
        return hyena_medium_config(problem);
    }
    // The tokens before a segment are read twice: at most a quarter of its length.
    static HyenaSplit split(const Config& config, i64 rows, i64 tokens, int taps, const jit::DeviceTraits& device) {
        const int least = 4 * kRowTokens * (toeplitz_blocks(taps) - 1);
        if (config.columns) return hyena_medium_split_of_columns(config.warps(), rows, tokens, least, device);
        return hyena_split(rows, tokens, kTileTokens, least, i64{kWarpsAnSm} * device.multiprocessors);
    }
    static void run(const HyenaMediumProblem& problem, Args args, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = config_on(problem, device);
        const i64 rows =
            args.batches * (config.columns ? ceil_div(args.channels, config.warps()) * config.warps() : args.channels);
        if (rows == 0) return;
        const HyenaSplit split = HyenaMedium::split(config, rows, args.tokens, args.filter.taps, device);
        args.segments = split.segments;
        args.segment_tokens = split.segment_tokens;
        args.vectors &= config.columns || !problem.columns;  // vectors of channels are not vectors of tokens
        launch<HyenaMedium>(config, args, hyena_blocks(rows, split.segments, config.warps()), target,
                            [&](const auto&) { return explain_hyena_medium(config, split.segment_tokens); });
    }
};

}  // namespace gdn_cuda::conv
