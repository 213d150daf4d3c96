// structured/toeplitz_sums on the host.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzSums {
    using Config = ToeplitzSumsConfig;
    using Args = ToeplitzMatvecArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_sums", *config_type = "ToeplitzSumsConfig",
                                *args_type = "ToeplitzMatvecArgs";
    static constexpr const char* summary = "products with Toeplitz matrices and their transposes by sums";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzSumsConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzSumsConfigurations, ToeplitzSumsSharedPlan>(
            config, std::make_index_sequence<kToeplitzSumsConfigurations.size()>());
    }

    static void run(const ToeplitzMatvecProblem& problem, Args args, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = toeplitz_sums_config(problem, device);
        args.columns_per_block = toeplitz_sums_columns_per_block(problem, config, device);
        const i64 parts = ceil_div(problem.columns, args.columns_per_block);
        launch<ToeplitzSums>(config, args, {problem.systems, ceil_div(problem.n, config.rows()), parts}, target);
    }
};

}  // namespace gdn_cuda::structured
