// scan/selective_backward on the host: which configuration runs a problem, how many sequences a launch takes, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/selective_backward/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "selective_split.hpp"

namespace gdn_cuda::scan {

struct SelectiveBackwardProblem {
    Transition transition;
    bool is_complex;
    bool varies;     // both B and C
    bool is_narrow;  // u, delta and all tensors of their shape have 16 bits
    i64 state_size, sequences;
    i64 channels_per_span, dim;  // blocks do not cross multiples of a span
};

inline constexpr std::array kSelectiveBackwardConfigurations = [] {
    using enum Transition;
    using Config = SelectiveBackwardConfig;
    constexpr auto complex_of = [](Transition transition, int lanes, int states) {
        return Config{transition, true, false, false, lanes, states};
    };
    constexpr auto real_of = [](Transition transition, int lanes, int states) {
        return Config{transition, false, false, false, lanes, states};
    };
    constexpr auto varying_of = [](Transition transition, bool is_narrow, int lanes, int states) {
        return Config{transition, false, true, is_narrow, lanes, states};
    };
    return std::array{Config{exponential, true, true, true, 8, 2},
                      varying_of(exponential, true, 4, 4),
                      varying_of(exponential, true, 8, 4),
                      varying_of(exponential, false, 4, 4),
                      varying_of(exponential, false, 8, 4),
                      real_of(exponential, 4, 4),
                      real_of(zoh, 8, 2),
                      real_of(bilinear, 4, 4),
                      real_of(s7, 4, 4),
                      real_of(rglru, 4, 1),
                      complex_of(exponential, 8, 2),
                      complex_of(zoh, 16, 1),
                      complex_of(bilinear, 16, 1)};
}();

inline i64 selective_backward_blocks(const SelectiveBackwardProblem& problem, const SelectiveBackwardConfig& config) {
    const i64 span = std::max<i64>(problem.channels_per_span, 1);
    return problem.dim / span * ceil_div(span, config.channels_per_block());
}

// If B and C vary, more than 16 states take more lanes; otherwise they take more launches.
inline SelectiveBackwardConfig selective_backward_config(const SelectiveBackwardProblem& problem) {
    const SelectiveBackwardConfig *any = nullptr, *varying = nullptr, *wide = nullptr;
    for (const SelectiveBackwardConfig& config : kSelectiveBackwardConfigurations) {
        if (config.transition != problem.transition || config.is_complex != problem.is_complex) continue;
        if (config.only_varying && config.is_narrow != problem.is_narrow) continue;
        (!config.only_varying ? any : config.group() > 16 ? wide : varying) = &config;
    }
    if (!problem.varies || varying == nullptr) return *any;
    return problem.state_size > varying->group() && wide != nullptr ? *wide : *varying;
}
// Splitting sequences costs 20 % more instructions, as the states alone take few of them, and launches worth 4,000 tokens of a
// channel on an SM of an H200.
inline Segments split_backward(const SelectiveBackwardProblem& problem, const SplitProblem& sizes,
                               const jit::DeviceTraits& device, int wanted) {
    constexpr SplitCost kCost{.more = 1.2, .launches = 4000};
    constexpr double kWaits = 2;
    const SelectiveBackwardConfig config = selective_backward_config(problem);
    const SplitLaunch launch{.blocks = problem.sequences * selective_backward_blocks(problem, config),
                             .resident = config.most_blocks(),
                             .waits = kWaits,
                             .work = SelectiveBackwardConfig::kThreads / static_cast<double>(config.lanes)};
    return choose_split(sizes, [&](int) { return launch; }, device.multiprocessors, kCost, wanted);
}
inline std::string explain_selective_backward(const SelectiveBackwardProblem& problem, const Segments& segments,
                                              const jit::DeviceTraits& device, bool in_turns = false) {
    const SelectiveBackwardConfig config = selective_backward_config(problem);
    const i64 passes = ceil_div(problem.state_size, config.group());
    return fmt::format(
        "{} channels a block, {} lanes with {} states each; {} pass{} over {} states; {} blocks for {} multiprocessors; {}",
        config.channels_per_block(), config.lanes, config.states, passes, passes == 1 ? "" : "es", problem.state_size,
        problem.sequences * segments.count * selective_backward_blocks(problem, config), device.multiprocessors,
        explain_split(segments, in_turns));
}

// How many sequences a launch computes: the sums over the channels of a block take 4 bytes for each token and element of B and
// of C, and stay within kMostSumsBytes, unless one sequence takes more.
inline constexpr i64 kMostSumsBytes = i64{512} << 20;
inline i64 sequences_at_a_time(i64 sequences, i64 bytes_of_one) {
    constexpr i64 kMostInGrid = 65535;
    return std::clamp<i64>(bytes_of_one == 0 ? sequences : kMostSumsBytes / bytes_of_one, 1,
                           std::min(std::max<i64>(sequences, 1), kMostInGrid));
}

struct SelectiveBackward {
    GDN_KERNEL(SelectiveBackward, scan, selective_backward, SelectiveBackwardConfig, SelectiveBackwardArgs,
               "gradients of selective_scan");

    static std::span<const Config> configurations() { return kSelectiveBackwardConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectiveBackwardConfigurations, SelectiveBackwardSharedPlan>(config);
    }

    static void run(const SelectiveBackwardProblem& problem, const Segments& segments, const Args& args, i64 sequences,
                    const Target& target) {
        const Config config = selective_backward_config(problem);
        launch<SelectiveBackward>(
            config, args, {selective_backward_blocks(problem, config), sequences, segments.count}, target,
            [&](const auto& traits) { return explain_selective_backward(problem, segments, traits, args.turns.taken()); });
    }
};

}  // namespace gdn_cuda::scan
