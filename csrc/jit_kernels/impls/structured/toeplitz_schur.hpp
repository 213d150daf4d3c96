// structured/toeplitz_schur on the host.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzSchur {
    using Config = ToeplitzSchurConfig;
    using Args = ToeplitzSchurArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_schur", *config_type = "ToeplitzSchurConfig",
                                *args_type = "ToeplitzSchurArgs";
    static constexpr const char* summary = "positive definite Toeplitz systems: Schur's and Levinson's recursions as one";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzSchurConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzSchurConfigurations, ToeplitzSchurSharedPlan>(
            config, std::make_index_sequence<kToeplitzSchurConfigurations.size()>());
    }

    static void run(const ToeplitzSchurProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const Config config = toeplitz_schur_config(problem);
        const i64 blocks =
            problem.systems * std::max<i64>(1, ceil_div(problem.columns, config.columns));  // info without columns too
        launch<ToeplitzSchur>(config, args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
