// scan/simplified_step on the host: its configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/simplified_step_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct SimplifiedStep {
    GDN_KERNEL(SimplifiedStep, scan, simplified_step, SimplifiedStepConfig, SimplifiedStepArgs,
               "a token of a diagonal complex scan, states in place, between products with B and C");

    static constexpr std::array kConfigurations = {Config{.threads = 128}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        const Config config = kConfigurations.front();
        const i64 elements = args.sequences * args.states;
        if (elements == 0) return;
        launch<SimplifiedStep>(config, args, {ceil_div(elements, config.threads), 1, 1}, target,
                               [&](const auto&) { return fmt::format("{} state elements, one a thread", elements); });
    }
};

}  // namespace gdn_cuda::scan
