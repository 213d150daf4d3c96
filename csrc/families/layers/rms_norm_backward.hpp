// layers/rms_norm_backward on the host: its launch.
#pragma once

#include "rms_norm_problem.hpp"

namespace gdn_cuda::layers {

constexpr RmsNormConfig rms_norm_backward_config(const RmsNormProblem& problem) {
    return rms_norm_config(problem, 8);
}
inline constexpr std::array kRmsNormBackwardConfigurations = every_rms_norm_configuration<8>();

struct RmsNormBackward {
    GDN_KERNEL(RmsNormBackward, layers, rms_norm_backward, RmsNormConfig, RmsNormBackwardArgs, "gradients of layers/rms_norm");

    static std::span<const Config> configurations() { return kRmsNormBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kRmsNormBackwardConfigurations, RmsNormBackwardSharedPlan>(config);
    }
    static Blocks blocks(const RmsNormProblem& problem, const Config& config, const jit::DeviceTraits& device) {
        return rms_norm_blocks(problem, config, config.backward_blocks(), device);
    }
    static void run(const RmsNormProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.columns == 0 || problem.groups == 0) return;
        const Config config = rms_norm_backward_config(problem);
        launch<RmsNormBackward>(config, args, blocks(problem, config, jit::device_traits(target.ordinal)), target,
                                [&](const auto&) { return explain_rms_norm(problem, config); });
    }
};

}  // namespace gdn_cuda::layers
