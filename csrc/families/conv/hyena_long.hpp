// conv/hyena_long on the host: the configuration and cut of a problem, and its launches.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_long_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"
#include "hyena_cut.hpp"

namespace gdn_cuda::conv {

struct HyenaLongProblem {
    DType io;
    i64 states;
};

constexpr HyenaLongConfig hyena_long_config(const HyenaLongProblem& problem, bool only_states) {
    return {.io = problem.io, .groups = problem.states <= kHyenaGroup ? 1 : kHyenaMostGroups, .only_states = only_states};
}
constexpr std::array<HyenaLongConfig, 12> every_hyena_long_configuration() {
    std::array<HyenaLongConfig, 12> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int states : {1, kHyenaMostStates})
            for (const bool only_states : {false, true}) all[count++] = hyena_long_config({io, states}, only_states);
    return all;
}
inline constexpr std::array kHyenaLongConfigurations = every_hyena_long_configuration();

// Warps share channels where there are too few for the loads in flight that memory takes: the first launch reads x1 and v once
// more, half of what the second moves.
inline HyenaCut hyena_long_cut(i64 rows, i64 tokens, const jit::DeviceTraits& device) {
    constexpr int kEnoughWarpsAnSm = 6, kWarpsAnSm = 16, kLeastTokens = 4 * kTileTokens;
    const bool enough = rows >= i64{kEnoughWarpsAnSm} * device.multiprocessors;
    return hyena_cut(rows, tokens, kTileTokens, kLeastTokens, enough ? rows : i64{kWarpsAnSm} * device.multiprocessors);
}

struct HyenaLong {
    using Config = HyenaLongConfig;
    using Args = HyenaLongArgs;
    static constexpr const char *family = "conv", *name = "hyena_long", *config_type = "HyenaLongConfig",
                                *args_type = "HyenaLongArgs";
    static constexpr const char* summary = "gated convolution with a sum of exponentials on tensor cores";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = true;

    static std::span<const Config> configurations() { return kHyenaLongConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaLongConfigurations, HyenaLongSharedPlan>(
            config, std::make_index_sequence<kHyenaLongConfigurations.size()>());
    }
    // args.segments and args.segment_tokens are those of hyena_long_cut.
    static void run(const HyenaLongProblem& problem, Args args, const Target& target) {
        const i64 rows = i64{args.batches} * args.channels;
        if (rows == 0) return;
        const auto why = [&](const auto&) {
            return fmt::format("up to {} states, a warp for each channel and {} tokens",
                               hyena_long_config(problem, false).groups * kHyenaGroup, args.segment_tokens);
        };
        if (args.segments > 1) {
            Args first = args;
            --first.segments;  // nothing follows the last share
            const Config config = hyena_long_config(problem, true);
            launch<HyenaLong>(config, first, hyena_blocks(rows, first.segments, config.warps()), target, why);
        }
        const Config config = hyena_long_config(problem, false);
        launch<HyenaLong>(config, args, hyena_blocks(rows, args.segments, config.warps()), target, why);
    }
};

}  // namespace gdn_cuda::conv
