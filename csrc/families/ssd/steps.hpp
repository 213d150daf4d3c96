// ssd/steps on the host: its configuration, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

struct Steps {
    GDN_KERNEL(Steps, ssd, steps, SsdStepsConfig, SsdStepsLaunch, "Mamba-2's steps and decays: 16 heads of a chunk a block",
               .starts_early = true);

    static constexpr std::array kConfigurations = {Config{.heads = 16}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        if (args.slots == 0 || args.heads == 0) return;  // nothing follows
        launch<Steps>(kConfigurations[0], args, {args.slots, ceil_div(args.heads, kConfigurations[0].heads), 1}, target,
                      [&](const auto&) { return fmt::format("{} chunks of {} heads", args.slots, args.heads); });
    }
};

}  // namespace gdn_cuda::ssd
