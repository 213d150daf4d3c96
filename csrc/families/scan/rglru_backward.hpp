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
    using Config = RglruConfig;
    using Args = RglruBackwardArgs;
    static constexpr const char *family = "scan", *name = "rglru_backward", *config_type = "RglruConfig",
                                *args_type = "RglruBackwardArgs";
    static constexpr const char* summary = "gradients of scan/rglru by u, delta, log A and initial states";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kRglruBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kRglruBackwardConfigurations, RglruBackwardSharedPlan>(
            config, std::make_index_sequence<kRglruBackwardConfigurations.size()>());
    }
    static void run(const RglruProblem& problem, const Args& args, const Target& target) {
        const Config config = rglru_backward_config(problem);
        const Blocks blocks = rglru_blocks(config, args.forward.batches, args.forward.channels);
        if (blocks[0] == 0 || args.forward.states == 0) return;
        launch<RglruBackward>(config, args, blocks, target, [&](const auto&) { return explain_rglru(problem, config); });
    }
};

}  // namespace gdn_cuda::scan
