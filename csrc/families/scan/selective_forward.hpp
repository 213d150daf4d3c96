// scan/selective_forward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "../../launch/winners.hpp"
#include "selective_split.hpp"

namespace gdn_cuda::scan {

struct SelectiveForwardProblem {
    Transition transition;
    bool is_complex;
    bool is_narrow;  // u, delta, z, delta_a, and varying B and C have 16 bits
    int states;
    i64 channels;  // over all sequences

    constexpr bool operator==(const SelectiveForwardProblem&) const = default;

    GDN_FIELDS(transition, is_complex, is_narrow, states, channels)
};
using SelectiveForwardWinners = Winners<SelectiveForwardProblem, SelectiveForwardConfig>;

inline constexpr std::array kSelectiveForwardConfigurations = [] {
    using enum Transition;
    return std::array{
        SelectiveForwardConfig{exponential, false, true, 4, 4},  SelectiveForwardConfig{exponential, false, true, 2, 8},
        SelectiveForwardConfig{exponential, false, false, 4, 4}, SelectiveForwardConfig{exponential, false, false, 2, 8},
        SelectiveForwardConfig{zoh, false, false, 2, 8},         SelectiveForwardConfig{bilinear, false, false, 2, 8},
        SelectiveForwardConfig{s7, false, false, 2, 8},          SelectiveForwardConfig{rglru, false, false, 2, 8},
        SelectiveForwardConfig{exponential, true, true, 2, 8},   SelectiveForwardConfig{exponential, true, false, 2, 8},
        SelectiveForwardConfig{zoh, true, false, 2, 8},          SelectiveForwardConfig{bilinear, true, false, 2, 8}};
}();

// Four states per lane take fewer instructions; eight lanes per channel give twice as many warps. A tuned winner holds for any
// number of tokens, and so of segments.
inline SelectiveForwardConfig selective_forward_config(const SelectiveForwardProblem& problem, int segments,
                                                       int multiprocessors, const SelectiveForwardWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    const bool many = problem.channels * segments >= i64{multiprocessors} * 64;
    const bool is_exponential = problem.transition == Transition::exponential;
    const bool is_wide = is_exponential && !problem.is_complex && many;
    return {.transition = problem.transition,
            .is_complex = problem.is_complex,
            .is_narrow = is_exponential && problem.is_narrow && problem.states <= 16,
            .states = is_wide ? 4 : 2,
            .lanes = is_wide ? 4 : 8};
}
// The heuristic's choice first, then the others.
inline std::vector<SelectiveForwardConfig> selective_forward_candidates(const SelectiveForwardProblem& problem,
                                                                        const jit::DeviceTraits& device) {
    std::vector<SelectiveForwardConfig> all{selective_forward_config(problem, 1, device.multiprocessors)};
    const SelectiveForwardConfig own = all.front();
    for (const SelectiveForwardConfig& config : kSelectiveForwardConfigurations)
        if (config.transition == own.transition && config.is_complex == own.is_complex && config.is_narrow == own.is_narrow &&
            config != own)
            all.push_back(config);
    return all;
}
inline std::string explain_selective_forward(const SelectiveForwardProblem& problem, int segments,
                                             const jit::DeviceTraits& device, const SelectiveForwardWinners* winners) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const SelectiveForwardConfig config = selective_forward_config(problem, segments, device.multiprocessors);
    return fmt::format("{} channels for {} multiprocessors: {} states a lane, {} lanes a channel", problem.channels * segments,
                       device.multiprocessors, config.states, config.lanes);
}

// Blocks for one sequence or segment. `span`: consecutive channels that read the same groups of B and C.
inline i64 selective_forward_blocks(const SelectiveForwardConfig& config, int dim, int span) {
    return i64{dim} / span * ceil_div(span, config.channels());
}
// If sequences are split, a token takes 1.5 times as long, as its recurrence is computed twice, and two more launches take 8
// µs, in which an SM of an H200 computes 12,000 tokens of a channel. So splitting pays only if most of the GPU would be idle,
// for long. benchmarks/scan_segments.py has the measurements for these constants.
inline Segments split_forward(const SelectiveForwardProblem& problem, const SplitProblem& sizes, int dim, int span,
                              const jit::DeviceTraits& device, int wanted) {
    constexpr SplitCost kCost{.more = 1.5, .launches = 12000};
    constexpr double kWaits = 1.5, kEightLanesWork = 1.2;
    const auto launch = [&](int parts) {
        const SelectiveForwardConfig config = selective_forward_config(problem, parts, device.multiprocessors);
        return SplitLaunch{.blocks = sizes.sequences * selective_forward_blocks(config, dim, span),
                           .resident = config.blocks_per_multiprocessor(device.capability),
                           .waits = kWaits,
                           .work = config.channels() * (config.lanes == 8 ? kEightLanesWork : 1)};
    };
    return choose_split(sizes, launch, device.multiprocessors, kCost, wanted);
}

struct SelectiveForwardTuning {
    GDN_TUNING(SelectiveForwardTuning);

    using Problem = SelectiveForwardProblem;
    using Choice = SelectiveForwardConfig;
    static constexpr std::array kernels = {"scan/selective_forward"};
    static constexpr auto& candidates = selective_forward_candidates;
    static std::string explain(const Problem& problem, const jit::DeviceTraits& device,
                               const SelectiveForwardWinners* winners) {
        return explain_selective_forward(problem, 1, device, winners);
    }
};

struct SelectiveForward {
    GDN_KERNEL(SelectiveForward, scan, selective_forward, SelectiveForwardConfig, SelectiveForwardArgs,
               "selective scan, its states in registers");

    static std::span<const Config> configurations() { return kSelectiveForwardConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectiveForwardConfigurations, SelectiveForwardSharedPlan>(config);
    }

    static void run(const SelectiveForwardProblem& problem, const Args& args, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = selective_forward_config(problem, args.segments.count, device.multiprocessors,
                                                       tuned<SelectiveForwardTuning>(device));
        const i64 blocks = selective_forward_blocks(config, args.in.dim, args.span) * args.in.sequences;
        launch<SelectiveForward>(config, args, {blocks, args.segments.count, 1}, target, [&](const auto& traits) {
            return fmt::format(
                "{}; {}",
                explain_selective_forward(problem, args.segments.count, traits, tuned<SelectiveForwardTuning>(traits)),
                explain_split(args.segments));
        });
    }
};

}  // namespace gdn_cuda::scan
