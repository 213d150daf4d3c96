// structured/toeplitz_matvec on the host.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzMatvec {
    using Config = ToeplitzMatvecConfig;
    using Args = ToeplitzMatvecArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_matvec", *config_type = "ToeplitzMatvecConfig",
                                *args_type = "ToeplitzMatvecArgs";
    static constexpr const char* summary =
        "products with Toeplitz matrices and their transposes: sums, or transforms in one block";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzMatvecConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzMatvecConfigurations, ToeplitzMatvecSharedPlan>(
            config, std::make_index_sequence<kToeplitzMatvecConfigurations.size()>());
    }

    static void run(const ToeplitzMatvecProblem& problem, Args args, const Target& target) {
        if (problem.systems == 0 || problem.columns == 0 || problem.n == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = toeplitz_matvec_config(problem, device);
        args.columns_per_block = toeplitz_columns_per_block(problem, device);
        args.parts = grid_of(ceil_div(problem.columns, args.columns_per_block));
        i64 blocks = problem.systems * args.parts;
        if (config.direct())
            blocks *= ceil_div(problem.n, Config::kRows);
        else
            args.log_transform = std::countr_zero(static_cast<unsigned>(toeplitz_transform_of(problem.io, problem.n)));
        launch<ToeplitzMatvec>(config, args, {grid_of(blocks), 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
