// scan/selective_lanes on the host: which problems it computes instead of scan/selective_forward, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_lanes_plan.cuh>
#include <optional>
#include <string>

#include "../../launch/spec.hpp"
#include "selective_forward.hpp"

namespace gdn_cuda::scan {

inline constexpr std::array kSelectiveLanesConfigurations{
    SelectiveLanesConfig{.lanes = 8, .tokens = 16, .at_once = 1, .warps = 4, .group = 16},
    SelectiveLanesConfig{.lanes = 16, .tokens = 16, .at_once = 1, .warps = 4, .group = 8},
    SelectiveLanesConfig{.lanes = 16, .tokens = 8, .at_once = 1, .warps = 4, .group = 16},
    SelectiveLanesConfig{.lanes = 32, .tokens = 8, .at_once = 2, .warps = 4, .group = 16}};

// Nothing where scan/selective_forward is faster: with many channels and up to 16 states, which take one pass there. The fewer
// lanes a channel has, the fewer instructions it takes; more lanes give more warps. In between, scan/selective_forward has two
// blocks on some multiprocessors and three on others, and blocks here take turns instead.
inline std::optional<SelectiveLanesConfig> selective_lanes_config(const SelectiveForwardProblem& problem, int multiprocessors) {
    if (problem.states > SelectiveLanesConfig::kMostStates) return {};
    const i64 channels = problem.channels / multiprocessors;
    if (channels < 14) return kSelectiveLanesConfigurations[3];
    if (channels < 24) return kSelectiveLanesConfigurations[2];
    if (problem.states > 16) return kSelectiveLanesConfigurations[0];
    return channels > 32 && channels < 44 ? std::optional(kSelectiveLanesConfigurations[1]) : std::nullopt;
}

// Blocks of a sequence.
inline i64 selective_lanes_blocks(const SelectiveLanesConfig& config, int dim, int span) {
    return i64{dim} / span * ceil_div(span, config.channels());
}

struct SelectiveLanes {
    GDN_KERNEL(SelectiveLanes, scan, selective_lanes, SelectiveLanesConfig, SelectiveLanesArgs,
               "selective scan, tokens spread over lanes: few channels or many states");

    static std::span<const Config> configurations() { return kSelectiveLanesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectiveLanesConfigurations, SelectiveLanesSharedPlan>(config);
    }

    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 blocks = selective_lanes_blocks(config, args.in.dim, args.span);
        launch<SelectiveLanes>(config, args, {blocks, args.in.sequences, args.segments.count}, target, [&](const auto& traits) {
            return fmt::format("{} channels for {} multiprocessors, {} states: {} lanes a channel with {} tokens each; {}",
                               i64{args.in.sequences} * args.in.dim, traits.multiprocessors, args.in.state_size, config.lanes,
                               config.tokens, explain_split(args.segments, args.turns.taken()));
        });
    }
};

}  // namespace gdn_cuda::scan
