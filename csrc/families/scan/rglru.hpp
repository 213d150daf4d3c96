// scan/rglru on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>

#include "rglru_problem.hpp"

namespace gdn_cuda::scan {

constexpr RglruConfig rglru_config(const RglruProblem& problem) {
    const bool many = problem.states > 1;
    return {.io = problem.io, .channels_last = problem.channels_last, .many_states = many, .tokens = many ? 8 : 16};
}
inline constexpr std::array kRglruConfigurations = every_rglru_configuration<rglru_config>();

struct Rglru {
    GDN_KERNEL(Rglru, scan, rglru, RglruConfig, RglruArgs, "x = a x + sqrt(1 - a^2) u with a = A^delta, summed over states");

    static std::span<const Config> configurations() { return kRglruConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kRglruConfigurations, RglruSharedPlan>(config); }
    static void run(const RglruProblem& problem, const Args& args, const Target& target) {
        const Config config = rglru_config(problem);
        const Blocks blocks = rglru_blocks(config, args.batches, args.channels);
        if (blocks[0] == 0 || args.states == 0) return;
        launch<Rglru>(config, args, blocks, target, [&](const auto&) { return explain_rglru(problem, config); });
    }
};

}  // namespace gdn_cuda::scan
