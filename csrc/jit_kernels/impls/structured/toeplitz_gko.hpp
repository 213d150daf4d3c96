// structured/toeplitz_gko on the host.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzGko {
    using Config = ToeplitzGkoConfig;
    using Args = ToeplitzGkoArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_gko", *config_type = "ToeplitzGkoConfig",
                                *args_type = "ToeplitzGkoArgs";
    static constexpr const char* summary = "any Toeplitz system: its Fourier transform's generators, eliminated with pivots";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzGkoConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // it is static

    static void run(const ToeplitzGkoProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const Config config = toeplitz_gko_config(problem);
        const i64 blocks = problem.systems * (problem.columns / config.columns + 1);
        launch<ToeplitzGko>(config, args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
