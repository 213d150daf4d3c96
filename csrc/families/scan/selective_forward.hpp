// scan/selective_forward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"
#include "selective_cut.hpp"

namespace gdn_cuda::scan {

struct SelectiveForwardProblem {
    Transition transition;
    bool is_complex;
    bool is_narrow;  // u, delta, z, delta_a, B and C
    int states;
    i64 sequences, dim;
    int span;  // channels that share a group of B and one of C
    Pieces pieces;

    i64 channels() const { return sequences * dim * pieces.count; }
};

inline constexpr std::array kSelectiveForwardConfigurations = [] {
    using enum Transition;
    return std::array{
        SelectiveForwardConfig{exponential, false, true, 4, 4},  SelectiveForwardConfig{exponential, false, true, 2, 8},
        SelectiveForwardConfig{exponential, false, false, 4, 4}, SelectiveForwardConfig{exponential, false, false, 2, 8},
        SelectiveForwardConfig{zoh, false, false, 2, 8},         SelectiveForwardConfig{bilinear, false, false, 2, 8},
        SelectiveForwardConfig{s7, false, false, 2, 8},          SelectiveForwardConfig{rglru, false, false, 2, 8},
        SelectiveForwardConfig{exponential, true, false, 2, 8},  SelectiveForwardConfig{zoh, true, false, 2, 8},
        SelectiveForwardConfig{bilinear, true, false, 2, 8}};
}();

// Four states a lane take fewer instructions, eight lanes a channel make twice as many warps.
inline SelectiveForwardConfig selective_forward_config(const SelectiveForwardProblem& problem, int multiprocessors) {
    const bool many = problem.channels() >= i64{multiprocessors} * 64;
    const bool plain = problem.transition == Transition::exponential && !problem.is_complex;
    return {.transition = problem.transition,
            .is_complex = problem.is_complex,
            .is_narrow = plain && problem.is_narrow && problem.states <= 16,
            .states = plain && many ? 4 : 2,
            .lanes = plain && many ? 4 : 8};
}
// Of one piece of every sequence.
inline i64 selective_forward_blocks(const SelectiveForwardProblem& problem, const SelectiveForwardConfig& config) {
    return problem.sequences * (problem.dim / problem.span) * ceil_div(problem.span, config.channels());
}
// A cut takes 1.65 times the instructions, as every state passes a token twice, so it has to find most of the GPU idle.
inline Pieces selective_forward_pieces(const SelectiveForwardProblem& problem, const CutProblem& sizes,
                                       const jit::DeviceTraits& device, int wanted) {
    constexpr double kMore = 1.65, kWorth = 0.8, kAlone = 0.235, kWorkOfFewLanes = 0.9;
    const auto launch = [&](int parts) {
        SelectiveForwardProblem cut = problem;
        cut.pieces.count = parts;
        const SelectiveForwardConfig config = selective_forward_config(cut, device.multiprocessors);
        return CutLaunch{.blocks = selective_forward_blocks(problem, config),
                         .resident = config.blocks_per_multiprocessor(device.capability),
                         .alone = kAlone,
                         .work = config.channels() * (config.lanes == 4 ? kWorkOfFewLanes : 1)};
    };
    return choose_cut(sizes, launch, device.multiprocessors, kMore, kWorth, wanted);
}
inline std::string explain_selective_forward(const SelectiveForwardProblem& problem, const jit::DeviceTraits& device) {
    const SelectiveForwardConfig config = selective_forward_config(problem, device.multiprocessors);
    return fmt::format("{} channels for {} multiprocessors: {} states a lane, {} lanes a channel; {}", problem.channels(),
                       device.multiprocessors, config.states, config.lanes, explain_pieces(problem.pieces));
}

struct SelectiveForward {
    using Config = SelectiveForwardConfig;
    using Args = SelectiveForwardArgs;
    static constexpr const char *family = "scan", *name = "selective_forward", *config_type = "SelectiveForwardConfig",
                                *args_type = "SelectiveForwardArgs";
    static constexpr const char* summary = "selective scan, its states walked in registers";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kSelectiveForwardConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectiveForwardConfigurations, SelectiveForwardSharedPlan>(
            config, std::make_index_sequence<kSelectiveForwardConfigurations.size()>());
    }

    static void run(const SelectiveForwardProblem& problem, const Args& args, const Target& target) {
        const Config config = selective_forward_config(problem, jit::device_traits(target.ordinal).multiprocessors);
        launch<SelectiveForward>(config, args, {selective_forward_blocks(problem, config), problem.pieces.count, 1}, target,
                                 [&](const auto& device) { return explain_selective_forward(problem, device); });
    }
};

}  // namespace gdn_cuda::scan
