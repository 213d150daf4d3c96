// structured/toeplitz_pcg on the host.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzPcg {
    using Config = ToeplitzPcgConfig;
    using Args = ToeplitzPcgArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_pcg", *config_type = "ToeplitzPcgConfig",
                                *args_type = "ToeplitzPcgArgs";
    static constexpr const char* summary =
        "large positive definite Toeplitz systems: conjugate gradients, all steps in a block";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzPcgConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzPcgConfigurations, ToeplitzPcgSharedPlan>(
            config, std::make_index_sequence<kToeplitzPcgConfigurations.size()>());
    }
    // Doubles that `args.scratch` has to hold.
    static i64 scratch(const ToeplitzPcgProblem& problem, int ordinal) {
        return toeplitz_pcg_blocks(problem, jit::device_traits(ordinal)) * toeplitz_pcg_config(problem).scratch();
    }

    static void run(const ToeplitzPcgProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const i64 blocks = toeplitz_pcg_blocks(problem, jit::device_traits(target.ordinal));
        launch<ToeplitzPcg>(toeplitz_pcg_config(problem), args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
