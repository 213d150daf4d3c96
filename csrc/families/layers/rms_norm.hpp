// layers/rms_norm on the host: its launch.
#pragma once

#include "rms_norm_problem.hpp"

namespace gdn_cuda::layers {

constexpr RmsNormConfig rms_norm_forward_config(const RmsNormProblem& problem) {
    return rms_norm_config(problem, 16);
}
inline constexpr std::array kRmsNormConfigurations = every_rms_norm_configuration<16>();

struct RmsNorm {
    using Config = RmsNormConfig;
    using Args = RmsNormArgs;
    static constexpr const char *family = "layers", *name = "rms_norm", *config_type = "RmsNormConfig",
                                *args_type = "RmsNormArgs";
    static constexpr const char* summary = "out = x / rms(x) * weight * a(gate), or the gate first";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false, starts_early = true;

    static std::span<const Config> configurations() { return kRmsNormConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kRmsNormConfigurations, RmsNormSharedPlan>(config,
                                                                     std::make_index_sequence<kRmsNormConfigurations.size()>());
    }
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
