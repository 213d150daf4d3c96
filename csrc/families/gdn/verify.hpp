// Host side of gdn/verify: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/verify/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// gdn/verify: a few tokens for every sequence of a padded batch, with gdn/decode's conditions on shapes.
struct VerifyProblem {
    i64 sequences, tokens;
    int heads, dk, dv;
    DType io, state;
    bool keeps_states;           // the state after every token is stored
    bool channel_gates = false;  // a gate for every channel of the key
};

inline constexpr int kMostVerifyTokens = VerifyConfig::kTokens;
// Blocks per SM from which a thread takes several rows, which share its reads of a token, and from which a block takes several
// steps, which share its tokens. Measured on an H200.
inline constexpr i64 kVerifyBlocksForRows = 1, kVerifyBlocksForSteps = 2;
// Where the fp32 states of more than two tokens are kept: blocks per SM from which writing them bounds. Blocks of few rows are
// faster then.
inline constexpr i64 kVerifyBlocksBoundByWrites = 16;

constexpr VerifyConfig verify_config(int dk, DType io, DType state, int rows_per_thread, bool channel_gates) {
    return {
        .head_k = dk, .io = io, .state = state, .rows_per_thread = rows_per_thread, .warps = 4, .channel_gates = channel_gates};
}

struct VerifyPlan {
    VerifyConfig config;
    int steps;  // steps over rows that a block takes
    i64 blocks;
};
inline VerifyPlan verify_plan(const VerifyProblem& problem, const jit::DeviceTraits& device) {
    const auto plan = [&](int rows_per_thread, int steps) {
        const VerifyConfig config =
            verify_config(problem.dk, problem.io, problem.state, rows_per_thread, problem.channel_gates);
        return VerifyPlan{config, steps,
                          problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_step() * steps)};
    };
    const auto fill = [&](const VerifyPlan& plan, i64 each) { return plan.blocks >= each * device.multiprocessors; };
    VerifyPlan best = plan(most_verify_rows_per_thread(problem.dk), 1);
    const bool writes = problem.keeps_states && problem.state == DType::f32 && problem.tokens > 2;
    if (!fill(best, kVerifyBlocksForRows) || (writes && fill(best, kVerifyBlocksBoundByWrites))) return plan(1, 1);
    const i64 most = std::min<i64>(VerifyConfig::kMostRows, problem.dv);
    for (int steps = 2; steps * best.config.rows_per_step() <= most; steps *= 2) {
        const VerifyPlan next = plan(best.config.rows_per_thread, steps);
        if (!fill(next, kVerifyBlocksForSteps)) break;
        best = next;
    }
    return best;
}

inline std::string explain_verify(const VerifyProblem& problem, const jit::DeviceTraits& device) {
    const VerifyPlan plan = verify_plan(problem, device);
    return fmt::format("{} tokens of {} sequences: {} blocks of {} rows for {} multiprocessors", problem.tokens,
                       problem.sequences, plan.blocks, plan.config.rows_per_step() * plan.steps, device.multiprocessors);
}

inline constexpr std::array kVerifyConfigurations = [] {
    std::array<VerifyConfig, size_t{24} * kExactHeadK.size()> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16, DType::i8})
            for (const int dk : kExactHeadK)
                for (const int rows : {1, most_verify_rows_per_thread(dk)})
                    for (const bool channel_gates : {false, true}) all[n++] = verify_config(dk, io, state, rows, channel_gates);
    return all;
}();

struct Verify {
    GDN_KERNEL(Verify, gdn, verify, VerifyConfig, VerifyArgs,
               "a few tokens for every sequence of a padded batch: speculative verify", .starts_early = true);

    static std::span<const Config> configurations() { return kVerifyConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kVerifyConfigurations, VerifySharedPlan>(config); }

    static void run(const VerifyProblem& problem, const GdnCall& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0 || args.dv == 0) return;
        const VerifyPlan plan = verify_plan(problem, jit::device_traits(target.ordinal));
        const i64 tiles = ceil_div(args.dv, plan.config.rows_per_step() * plan.steps);
        launch<Verify>(plan.config, {args, plan.steps}, {tiles, args.heads, args.sequences}, target,
                       [&](const auto& device) { return explain_verify(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
