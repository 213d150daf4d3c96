// ssd/replay_step on the host: its configuration, how many rows a block has, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/ssd/replay_step/plan.cuh>

#include "../common/ring_blocks.hpp"

namespace gdn_cuda::ssd {

struct ReplayStepProblem {
    i64 sequences;
    int tokens;  // the longest sequence's
    int heads, groups, channels, states;
    DType io, state;

    int group_rows() const { return heads / groups * channels; }
    static int smallest_block() { return ReplayStepConfig::groups(); }
    Blocks blocks(int rows) const { return {ceil_div(group_rows(), rows), groups, sequences}; }
};

inline constexpr int kMostReplayStates = 256;

// Shared memory has no room for fp32 tokens beside their parts.
constexpr bool has_replay_step(DType io, DType state) {
    return io != DType::f32 || state != DType::i8;
}
constexpr ReplayStepConfig replay_step_config(DType io, DType state, int states, int tokens) {
    return {.io = io,
            .state = state,
            .states = states <= 64    ? 64
                      : states <= 128 ? 128
                                      : 256,
            .tokens = tokens <= 1 ? 1 : kMostRingTokens};
}
constexpr ReplayStepConfig replay_step_config(const ReplayStepProblem& problem) {
    return replay_step_config(problem.io, problem.state, problem.states, problem.tokens);
}

// Rows of a block, a multiple of its groups of lanes. They are of at most as many heads as it has warps: P is a multiple of 8,
// so that three heads' rows begin and end in four.
inline int replay_step_rows(const ReplayStepProblem& problem, const jit::DeviceTraits& device) {
    constexpr int kStep = ReplayStepConfig::groups(), kHeads = ReplayStepConfig::kHeads - 1;
    const i64 head_rows = i64{kHeads} * problem.channels / kStep * kStep;
    const i64 all = ceil_div(problem.group_rows(), kStep) * kStep;
    return ring_rows(problem, static_cast<int>(std::min<i64>({replay_step_config(problem).most_rows(), head_rows, all})),
                     device);
}

inline constexpr std::array kReplayStepConfigurations = [] {
    std::array<ReplayStepConfig, size_t{11} * 3 * 2> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const DType state : {DType::f32, DType::bf16, DType::f16, DType::i8})
            for (const int states : {64, 128, 256})
                for (const int tokens : {1, kMostRingTokens})
                    if (has_replay_step(io, state)) all[n++] = replay_step_config(io, state, states, tokens);
    return all;
}();

struct ReplayStep {
    GDN_KERNEL(ReplayStep, ssd, replay_step, ReplayStepConfig, ReplayStepArgs,
               "Mamba-2's tokens from a state that lacks the last ones, which a ring holds", .uses_cutlass = true,
               .starts_early = true);

    static std::span<const Config> configurations() { return kReplayStepConfigurations; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kReplayStepConfigurations, ReplayStepSharedPlan>(config);
    }

    static void run(const ReplayStepProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.group_rows() == 0) return;
        args.block_rows = replay_step_rows(problem, jit::device_traits(target.ordinal));
        launch_ring<ReplayStep>(replay_step_config(problem), problem, args, target);
    }
};

}  // namespace gdn_cuda::ssd
