// Host side of gdn/verify: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/verify_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// gdn/verify: a few tokens for every sequence of a padded batch, with gdn/decode's conditions on shapes.
struct VerifyProblem {
    i64 sequences, tokens;
    int heads, dk, dv;
    DType io, state;
};

constexpr VerifyConfig verify_config(int dk, DType io, DType state) {
    return {.head_k = dk, .io = io, .state = state, .rows_per_thread = 2, .steps = 4, .warps = 4};
}

inline constexpr int kMostVerifyTokens = TokenBatch<verify_config(128, DType::bf16, DType::f32)>::kTokens;

// A block covers many rows: with fewer than two blocks per SM, gdn/recurrent spreads the work better.
inline bool verify_applies(const VerifyProblem& problem, const jit::DeviceTraits& device) {
    const VerifyConfig config = verify_config(problem.dk, problem.io, problem.state);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    return problem.tokens <= kMostVerifyTokens && blocks >= 2 * device.multiprocessors;
}

inline std::string explain_verify(const VerifyProblem& problem, const jit::DeviceTraits& device) {
    const VerifyConfig config = verify_config(problem.dk, problem.io, problem.state);
    return fmt::format("{} tokens of {} sequences: {} blocks of {} rows give each of {} multiprocessors two or more",
                       problem.tokens, problem.sequences,
                       problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block()),
                       config.rows_per_block(), device.multiprocessors);
}

inline constexpr std::array kVerifyConfigurations = [] {
    std::array<VerifyConfig, 4 * kExactHeadK.size()> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int dk : kExactHeadK) all[n++] = verify_config(dk, io, state);
    return all;
}();

struct Verify {
    using Config = VerifyConfig;
    using Args = RecurrentArgs;
    static constexpr const char *family = "gdn", *name = "verify", *config_type = "VerifyConfig", *args_type = "RecurrentArgs";
    static constexpr const char* summary = "a few tokens for every sequence of a padded batch: speculative verify";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kVerifyConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kVerifyConfigurations, VerifySharedPlan>(config,
                                                                   std::make_index_sequence<kVerifyConfigurations.size()>());
    }

    static void run(const VerifyProblem& problem, const Args& args, const Target& target) {
        const Config config = verify_config(problem.dk, problem.io, problem.state);
        launch<Verify>(config, args, {ceil_div(args.dv, config.rows_per_block()), args.heads, args.sequences}, target,
                       [&](const auto& device) { return explain_verify(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
