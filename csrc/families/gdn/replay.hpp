// Host side of gdn/replay: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/replay/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

struct ReplayProblem {
    i64 sequences;
    int heads, dk, dv;
    int stored_steps;  // that a slot has room for
    DType io, state;
    bool aligned;
    bool channel_gates = false;  // a gate for every channel of the key
};

inline constexpr int kFewReplayTokens = 8, kMostReplayTokens = 16;
// More rows per block share its tokens, as long as every SM has a few blocks.
inline constexpr i64 kReplayBlocksPerMultiprocessor = 3;

constexpr ReplayConfig replay_config(int dk, int stored_steps, DType io, DType state, bool aligned, bool channel_gates) {
    const bool exact = aligned && has_exact_kernel(dk);
    return {.head_k = exact ? dk : masked_head_k(dk),
            .exact_k = exact,
            .io = io,
            .state = state,
            .tokens = exact && stored_steps <= kFewReplayTokens ? kFewReplayTokens : kMostReplayTokens,
            .aligned = aligned,
            .warps = 4,
            .channel_gates = channel_gates};
}
constexpr ReplayConfig replay_config(const ReplayProblem& problem) {
    return replay_config(problem.dk, problem.stored_steps, problem.io, problem.state, problem.aligned, problem.channel_gates);
}

inline i64 replay_blocks(const ReplayProblem& problem, int steps) {
    const i64 tiles = ceil_div(problem.dv, replay_config(problem).rows_per_step() * steps);
    return problem.sequences * problem.heads * tiles;
}
// Row steps of a block.
inline int replay_steps(const ReplayProblem& problem, const jit::DeviceTraits& device) {
    int steps = replay_config(problem).most_steps();
    while (steps > 1 && replay_blocks(problem, steps) < kReplayBlocksPerMultiprocessor * device.multiprocessors) steps /= 2;
    return steps;
}

inline std::string explain_replay(const ReplayProblem& problem, const jit::DeviceTraits& device) {
    const ReplayConfig config = replay_config(problem);
    const int steps = replay_steps(problem, device);
    std::string why;
    if (!problem.aligned) why += "rows do not start on 16 bytes: element-wise loads; ";
    if (!config.exact_k) why += fmt::format("dk {} runs masked in the code for {}; ", problem.dk, config.head_k);
    return why + fmt::format("{} blocks of {} rows for {} multiprocessors; room for {} tokens", replay_blocks(problem, steps),
                             config.rows_per_step() * steps, device.multiprocessors, config.tokens);
}

inline constexpr std::array kReplayConfigurations = [] {
    std::array<ReplayConfig, size_t{2} * 2 * 2 * (2 * kExactHeadK.size() + 2 * kMaskedHeadK.size())> all{};
    size_t n = 0;
    for (const bool channel_gates : {false, true})
        for (const DType io : {DType::bf16, DType::f16})
            for (const DType state : {DType::f32, DType::bf16}) {
                for (const int tokens : {kFewReplayTokens, kMostReplayTokens})
                    for (const int dk : kExactHeadK) all[n++] = replay_config(dk, tokens, io, state, true, channel_gates);
                for (const bool aligned : {true, false})
                    for (const int head_k : kMaskedHeadK)
                        all[n++] = replay_config(head_k - 8, kMostReplayTokens, io, state, aligned, channel_gates);
            }
    return all;
}();

struct Replay {
    GDN_KERNEL(Replay, gdn, replay, ReplayConfig, ReplayArgs,
               "speculative verify that keeps tokens and applies the accepted ones in the next call", .starts_early = true);

    static std::span<const Config> configurations() { return kReplayConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kReplayConfigurations, ReplaySharedPlan>(config); }

    static void run(const ReplayProblem& problem, Args args, const Target& target) {
        args.steps = replay_steps(problem, jit::device_traits(target.ordinal));
        const i64 blocks = replay_blocks(problem, args.steps);
        if (blocks == 0) return;
        launch<Replay>(replay_config(problem), args, {blocks, 1, 1}, target,
                       [&](const auto& device) { return explain_replay(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
