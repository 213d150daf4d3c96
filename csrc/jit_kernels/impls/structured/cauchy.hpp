// structured/cauchy on the host.
#pragma once

#include "../../heuristics/structured.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct Cauchy {
    using Config = CauchyConfig;
    using Args = CauchyArgs;
    static constexpr const char *family = "structured", *name = "cauchy", *config_type = "CauchyConfig",
                                *args_type = "CauchyArgs";
    static constexpr const char* summary = "sums of residues over distances to poles, conjugate pairs as one";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCauchyConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // it is static

    static void run(const CauchyProblem& problem, const CauchyChoice& choice, Args args, const Target& target) {
        if (problem.rows == 0 || problem.points == 0) return;
        const Config config = cauchy_config(problem, choice.rows, choice.points);
        args.turns = choice.turns;
        const i64 blocks = problem.rows / config.rows * ceil_div(problem.points, config.points_per_block() * args.turns);
        launch<Cauchy>(config, args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
