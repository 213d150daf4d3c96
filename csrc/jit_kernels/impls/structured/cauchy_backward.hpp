// structured/cauchy_backward on the host.
#pragma once

#include "../../heuristics/structured.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct CauchyBackward {
    using Config = CauchyBackwardConfig;
    using Args = CauchyBackwardArgs;
    static constexpr const char *family = "structured", *name = "cauchy_backward", *config_type = "CauchyBackwardConfig",
                                *args_type = "CauchyBackwardArgs";
    static constexpr const char* summary = "gradients of sums over poles: of residues and poles, or of points";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCauchyBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // it is static

    static void run(const CauchyBackwardProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.lines == 0) return;
        const Config config = cauchy_backward_config(problem, jit::device_traits(target.ordinal));
        launch<CauchyBackward>(config, args, {cauchy_backward_blocks(problem, config.lines), 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
