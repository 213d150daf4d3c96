// Host side of gdn/split_sequences: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/split_sequences_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kSplitSequencesConfigurations = {SplitSequencesConfig{.warps = 4}};

struct SplitSequences {
    GDN_KERNEL(SplitSequences, gdn, split_sequences, SplitSequencesConfig, SplitSequencesArgs,
               "sequences as two parts each, around a checkpoint at any token");

    static std::span<const Config> configurations() { return kSplitSequencesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        if (args.sequences == 0) return;
        const Config config = kSplitSequencesConfigurations.front();
        launch<SplitSequences>(config, args, {ceil_div(args.sequences, config.threads()), 1, 1}, target,
                               [&](const auto&) { return fmt::format("{} sequences", args.sequences); });
    }
};

}  // namespace gdn_cuda::gdn
