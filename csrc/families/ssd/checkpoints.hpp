// ssd/checkpoints on the host: its configuration, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/checkpoints_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

struct Checkpoints {
    GDN_KERNEL(Checkpoints, ssd, checkpoints, SsdCheckpointsConfig, SsdCheckpointsArgs,
               "the chunks of a scan that reports states");

    static constexpr std::array kConfigurations = {Config{.warps = 16}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        launch<Checkpoints>(kConfigurations[0], args, {1 + i64{args.checkpoint_rows} + args.before_rows, 1, 1}, target,
                            [&](const auto&) { return fmt::format("{} rows of states", args.checkpoint_rows); });
    }
};

}  // namespace gdn_cuda::ssd
