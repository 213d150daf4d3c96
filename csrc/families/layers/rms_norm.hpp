// layers/rms_norm on the host: its launch.
#pragma once

#include "rms_norm_problem.hpp"

namespace gdn_cuda::layers {

constexpr RmsNormConfig rms_norm_forward_config(const RmsNormProblem& problem) {
    return rms_norm_config(problem, 16);
}
inline constexpr std::array kRmsNormConfigurations = every_rms_norm_configuration<16>();

struct RmsNorm {
    GDN_KERNEL(RmsNorm, layers, rms_norm, RmsNormConfig, RmsNormArgs, "out = x / rms(x) * weight * a(gate), or the gate first",
               .starts_early = true);

    static std::span<const Config> configurations() { return kRmsNormConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kRmsNormConfigurations, RmsNormSharedPlan>(config); }
    static Blocks blocks(const RmsNormProblem& problem, const Config& config, const jit::DeviceTraits& device) {
        return rms_norm_blocks(problem, config, config.forward_blocks(), device);
    }
    static void run(const RmsNormProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.columns == 0 || problem.groups == 0) return;
        const Config config = rms_norm_forward_config(problem);
        launch<RmsNorm>(config, args, blocks(problem, config, jit::device_traits(target.ordinal)), target,
                        [&](const auto&) { return explain_rms_norm(problem, config); });
    }
};

}  // namespace gdn_cuda::layers
