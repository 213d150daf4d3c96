// conv/hyena_medium_backward on the host: the configuration and split of a problem, and its launch.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/backward_plan.cuh>

#include "hyena_medium.hpp"

namespace gdn_cuda::conv {

// With contiguous channels, fp16 and many taps need more shared memory than an SM has.
constexpr HyenaMediumBackwardConfig hyena_medium_backward_config(const HyenaMediumProblem& problem) {
    const HyenaMediumConfig forward = hyena_medium_config(problem);
    const bool fits = forward.few_taps() || problem.io != DType::f16;
    return {.io = forward.io, .taps = forward.taps, .columns = forward.columns && fits};
}
constexpr auto every_hyena_medium_backward_configuration() {
    std::array<HyenaMediumBackwardConfig, 11> all{};
    int count = 0;
    for (const HyenaMediumConfig& each : kHyenaMediumConfigurations) {
        const auto config = hyena_medium_backward_config({each.io, each.taps, each.columns});
        if (config.columns == each.columns) all[count++] = config;
    }
    return all;
}
inline constexpr auto kHyenaMediumBackwardConfigurations = every_hyena_medium_backward_configuration();

struct HyenaMediumBackward {
    GDN_KERNEL(HyenaMediumBackward, conv, hyena_medium_backward, HyenaMediumBackwardConfig, HyenaMediumBackwardArgs,
               "gradients of a gated convolution of at most 1024 taps on tensor cores", .uses_cutlass = true);

    static constexpr int kWarpsAnSm = 48;  // per launch: a few waves, so that the last one is short

    static std::span<const Config> configurations() { return kHyenaMediumBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaMediumBackwardConfigurations, HyenaMediumBackwardSharedPlan>(config);
    }
    static Config config_on(HyenaMediumProblem problem, const jit::DeviceTraits& device) {
        problem.columns =
            problem.columns && shared_bytes(hyena_medium_backward_config(problem)) <= device.shared_bytes_per_block;
        return hyena_medium_backward_config(problem);
    }
    static i64 rows_of(const Config& config, i64 batches, i64 channels) {
        return batches * (config.columns ? ceil_div(channels, config.warps()) * config.warps() : channels);
    }
    // Each segment writes a sum per tap: at most an eighth of its number of elements.
    static HyenaSplit split(const Config& config, i64 batches, i64 channels, i64 tokens, int taps,
                            const jit::DeviceTraits& device) {
        const int least = std::max(4 * kRowTokens * (toeplitz_blocks(taps) - 1), 4 * kTileTokens);
        const i64 rows = rows_of(config, batches, channels);
        // In fp32, two segments of 65536 tokens are 5 % faster on an H200 than the one of this split.
        if (config.columns && config.io != DType::f32)
            return hyena_medium_split_of_columns(config.warps(), rows, tokens, least, device);
        return hyena_split(rows, tokens, kTileTokens, least, i64{kWarpsAnSm} * device.multiprocessors);
    }
    // args.forward.segments and args.forward.segment_tokens come from `split`.
    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 rows = rows_of(config, args.forward.batches, args.forward.channels);
        if (rows == 0) return;
        launch<HyenaMediumBackward>(
            config, args, hyena_blocks(rows, args.forward.segments, config.warps()), target,
            [&](const auto&) { return explain_hyena_medium(config.forward(), args.forward.segment_tokens); });
    }
};

}  // namespace gdn_cuda::conv
