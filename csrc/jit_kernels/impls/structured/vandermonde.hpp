// structured/vandermonde on the host.
#pragma once

#include "../../heuristics/structured.hpp"
#include "../../tuned.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct Vandermonde {
    using Config = VandermondeConfig;
    using Args = VandermondeArgs;
    static constexpr const char *family = "structured", *name = "vandermonde", *config_type = "VandermondeConfig",
                                *args_type = "VandermondeArgs";
    static constexpr const char* summary = "sums of powers, phases exact: a product of two small tables";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kVandermondeConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kVandermondeConfigurations, VandermondeSharedPlan>(
            config, std::make_index_sequence<kVandermondeConfigurations.size()>());
    }

    static void run(const VandermondeProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.steps == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = vandermonde_config(problem, device, tuned<VandermondeTuning>(device));
        launch<Vandermonde>(config, args, {vandermonde_blocks(problem, config), 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
