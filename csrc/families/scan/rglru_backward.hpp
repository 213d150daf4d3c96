// scan/rglru_backward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>

#include "rglru_problem.hpp"

namespace gdn_cuda::scan {

constexpr RglruConfig rglru_backward_config(const RglruProblem& problem) {
    return {.io = problem.io, .channels_last = problem.channels_last, .many_states = problem.states > 1, .tokens = 8};
}
inline constexpr std::array kRglruBackwardConfigurations = every_rglru_configuration<rglru_backward_config>();

struct RglruBackward {
    GDN_KERNEL(RglruBackward, scan, rglru_backward, RglruConfig, RglruBackwardArgs,
               "gradients of scan/rglru by u, delta, log A and initial states");

    static std::span<const Config> configurations() { return kRglruBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kRglruBackwardConfigurations, RglruBackwardSharedPlan>(config);
    }
    static void run(const RglruProblem& problem, const Args& args, const Target& target) {
        const Config config = rglru_backward_config(problem);
        const Blocks blocks = rglru_blocks(config, args.forward.batches, args.forward.channels);
        if (blocks[0] == 0 || args.forward.states == 0) return;
        launch<RglruBackward>(config, args, blocks, target, [&](const auto&) { return explain_rglru(problem, config); });
    }
};

}  // namespace gdn_cuda::scan
