// conv/hyena_medium on the host: the configuration and cut of a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_medium_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"
#include "hyena_cut.hpp"

namespace gdn_cuda::conv {

struct HyenaMediumProblem {
    DType io;
    i64 taps;
};

constexpr HyenaMediumConfig hyena_medium_config(const HyenaMediumProblem& problem) {
    return {.io = problem.io, .taps = problem.taps <= kHyenaMediumFewTaps ? kHyenaMediumFewTaps : kHyenaMediumMostTaps};
}
inline constexpr std::array kHyenaMediumConfigurations = {
    hyena_medium_config({DType::bf16, 1}), hyena_medium_config({DType::bf16, kHyenaMediumMostTaps}),
    hyena_medium_config({DType::f16, 1}),  hyena_medium_config({DType::f16, kHyenaMediumMostTaps}),
    hyena_medium_config({DType::f32, 1}),  hyena_medium_config({DType::f32, kHyenaMediumMostTaps}),
};

struct HyenaMedium {
    using Config = HyenaMediumConfig;
    using Args = HyenaArgs;
    static constexpr const char *family = "conv", *name = "hyena_medium", *config_type = "HyenaMediumConfig",
                                *args_type = "HyenaArgs";
    static constexpr const char* summary = "gated convolution of at most 1024 taps on tensor cores";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = true;
    static constexpr int kWarpsAnSm = 64;  // of a launch: a few waves, so that the last one is short

    static std::span<const Config> configurations() { return kHyenaMediumConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaMediumConfigurations, HyenaMediumSharedPlan>(
            config, std::make_index_sequence<kHyenaMediumConfigurations.size()>());
    }
    // What lies before a share is read twice: at most a quarter of it.
    static HyenaCut cut(i64 rows, i64 tokens, int taps, const jit::DeviceTraits& device) {
        return hyena_cut(rows, tokens, kTileTokens, 4 * kRowTokens * (toeplitz_blocks(taps) - 1),
                         i64{kWarpsAnSm} * device.multiprocessors);
    }
    static void run(const HyenaMediumProblem& problem, Args args, const Target& target) {
        const i64 rows = i64{args.batches} * args.channels;
        if (rows == 0) return;
        const Config config = hyena_medium_config(problem);
        const HyenaCut cut = HyenaMedium::cut(rows, args.tokens, args.filter.taps, jit::device_traits(target.ordinal));
        args.segments = cut.segments;
        args.segment_tokens = cut.segment_tokens;
        launch<HyenaMedium>(config, args, hyena_blocks(rows, cut.segments, config.warps()), target, [&](const auto&) {
            return fmt::format("up to {} taps, a warp for each channel and {} tokens", config.taps, cut.segment_tokens);
        });
    }
};

}  // namespace gdn_cuda::conv
