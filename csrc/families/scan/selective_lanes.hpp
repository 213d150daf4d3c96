// scan/selective_lanes on the host: which problems it computes instead of scan/selective_forward, and its launch.
#pragma once

#include <array>
#include <cstdlib>
#include <gdn_cuda/kernels/scan/selective_lanes_plan.cuh>
#include <optional>
#include <string>

#include "../../launch/spec.hpp"
#include "selective_forward.hpp"
#include "variables.hpp"

namespace gdn_cuda::scan {

inline constexpr std::array kSelectiveLanesConfigurations{
    SelectiveLanesConfig{8, 16, 1, 4}, SelectiveLanesConfig{16, 8, 1, 4}, SelectiveLanesConfig{16, 8, 2, 4},
    SelectiveLanesConfig{32, 8, 1, 4}, SelectiveLanesConfig{32, 8, 2, 4}, SelectiveLanesConfig{8, 16, 1, 2},
    SelectiveLanesConfig{16, 8, 1, 2}, SelectiveLanesConfig{16, 8, 1, 8}};

inline i64 selective_lanes_blocks(const SelectiveLanesConfig& config, int dim, int span) {
    return i64{dim} / span * ceil_div(span, config.channels());
}

// `dim`: of one sequence. Nothing if scan/selective_forward is faster.
inline std::optional<SelectiveLanesConfig> selective_lanes_config(const SelectiveForwardProblem& problem, int dim, int span,
                                                                  int multiprocessors) {
    if (const char* text = std::getenv("GDN_TRY_LANES")) {
        const int wanted = std::atoi(text);
        if (wanted < 1 || wanted > static_cast<int>(kSelectiveLanesConfigurations.size())) return {};
        return kSelectiveLanesConfigurations[wanted - 1];
    }
    static_cast<void>(dim), static_cast<void>(span), static_cast<void>(multiprocessors);
    if (problem.states > 16) return kSelectiveLanesConfigurations[0];
    return {};
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
        launch<SelectiveLanes>(config, args, {selective_lanes_blocks(config, args.in.dim, args.span), args.in.sequences, 1}, target,
                               [&](const auto&) {
                                   return fmt::format("{} lanes with {} tokens each; sequences are not split", config.lanes,
                                                      config.tokens);
                               });
    }
};

}  // namespace gdn_cuda::scan
