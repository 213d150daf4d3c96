// conv/hyena_short and conv/hyena_short_columns on the host: configuration, split and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "hyena_segments.hpp"

namespace gdn_cuda::conv {

struct HyenaShortProblem {
    DType io;
    i64 taps;
};

constexpr HyenaShortConfig hyena_short_config(const HyenaShortProblem& problem) {
    const int most = problem.taps <= kHyenaShortFewTaps ? kHyenaShortFewTaps : kHyenaShortMostTaps;
    return {.io = problem.io, .taps = most, .exact = problem.taps == kHyenaShortMostTaps};
}
constexpr HyenaShortConfig hyena_short_columns_config(const HyenaShortProblem& problem) {
    if (problem.taps == kHyenaShortEvoTaps) return {.io = problem.io, .taps = kHyenaShortEvoTaps, .exact = true};
    return hyena_short_config(problem);
}
inline constexpr std::array kHyenaShortConfigurations = {
    hyena_short_config({DType::bf16, 1}), hyena_short_config({DType::bf16, 9}), hyena_short_config({DType::bf16, 32}),
    hyena_short_config({DType::f16, 1}),  hyena_short_config({DType::f16, 9}),  hyena_short_config({DType::f16, 32}),
    hyena_short_config({DType::f32, 1}),  hyena_short_config({DType::f32, 9}),  hyena_short_config({DType::f32, 32}),
};
// Evo 2's filters come first.
inline constexpr std::array kHyenaShortColumnsConfigurations = [] {
    std::array<HyenaShortConfig, kHyenaShortConfigurations.size() + 3> all{};
    std::ranges::copy(kHyenaShortConfigurations, all.begin() + 3);
    int i = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        all[i++] = hyena_short_columns_config({io, kHyenaShortEvoTaps});
    return all;
}();

inline std::string explain_hyena_short(const HyenaShortConfig& config, const char* row, const HyenaSplit& split) {
    return fmt::format("{}{} taps, a warp for each {} and {} tokens", config.exact ? "" : "up to ", config.taps, row,
                       split.segment_tokens);
}

// Base of both Specs.
struct HyenaShortCommon {
    using Config = HyenaShortConfig;
    using Args = HyenaArgs;

    static int threads(const Config&) { return kHyenaShortThreads; }
    template <class Spec>
    static void run_rows(i64 rows, const Config& config, const HyenaSplit& split, Args args, const Target& target,
                         const char* row) {
        if (rows == 0) return;
        args.segments = split.segments;
        args.segment_tokens = split.segment_tokens;
        launch<Spec>(config, args, hyena_blocks(rows, split.segments, kHyenaShortWarps), target,
                     [&](const auto&) { return explain_hyena_short(config, row, split); });
    }
};

struct HyenaShort : HyenaShortCommon {
    GDN_KERNEL(HyenaShort, conv, hyena_short, HyenaShortConfig, HyenaArgs,
               "gated convolution of at most 32 taps, tokens contiguous");

    static std::span<const Config> configurations() { return kHyenaShortConfigurations; }
    static int shared_bytes(const Config&) { return 0; }
    static constexpr int kWarpsAnSm = 128;  // per launch: a few waves, so that the last one is short

    static HyenaSplit split(i64 rows, i64 tokens, const jit::DeviceTraits& device) {
        return hyena_split(rows, tokens, Config::tile(), Config::tile(), i64{kWarpsAnSm} * device.multiprocessors);
    }
    static void run(const HyenaShortProblem& problem, const Args& args, const Target& target) {
        const i64 rows = i64{args.batches} * args.channels;
        run_rows<HyenaShort>(rows, hyena_short_config(problem), split(rows, args.tokens, jit::device_traits(target.ordinal)),
                             args, target, "channel");
    }
};

struct HyenaShortColumns : HyenaShortCommon {
    GDN_KERNEL(HyenaShortColumns, conv, hyena_short_columns, HyenaShortConfig, HyenaArgs, "the same, channels contiguous");

    static constexpr int kWaves = 4;         // per launch, so that the last one is short
    static constexpr int kLeastTokens = 64;  // per segment: the tokens before it are read twice

    static std::span<const Config> configurations() { return kHyenaShortColumnsConfigurations; }
    static int shared_bytes(const Config& config) { return kHyenaShortWarps * config.columns_shared_bytes(); }
    static i64 rows_of(const Config& config, i64 batches, i64 channels) {
        return batches * ceil_div(channels, config.warp_channels());
    }
    static HyenaSplit split(const Config& config, i64 rows, i64 tokens, const jit::DeviceTraits& device) {
        const i64 wave = i64{config.columns_blocks_an_sm()} * kHyenaShortWarps * device.multiprocessors;
        return hyena_split_by_waves(rows, tokens, config.step(), kLeastTokens, wave, kWaves, config.taps);
    }
    static void run(const HyenaShortProblem& problem, const Args& args, const Target& target) {
        const Config config = hyena_short_columns_config(problem);
        const i64 rows = rows_of(config, args.batches, args.channels);
        run_rows<HyenaShortColumns>(rows, config, split(config, rows, args.tokens, jit::device_traits(target.ordinal)), args,
                                    target, "group of channels");
    }
};

}  // namespace gdn_cuda::conv
