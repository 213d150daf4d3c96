// gdn/verify on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

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
        launch<Verify>(config, args, {ceil_div(args.dv, config.rows_per_block()), args.heads, args.sequences}, target);
    }
};

}  // namespace gdn_cuda::gdn
