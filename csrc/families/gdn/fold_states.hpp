// Host side of gdn/fold_states: configurations and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/fold_states_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kFoldStatesConfigurations = {FoldStatesConfig{.columns = 128, .rows = 16},
                                                         FoldStatesConfig{.columns = 256, .rows = 16}};

struct StatesFold {
    GDN_KERNEL(StatesFold, gdn, fold_states, FoldStatesConfig, FoldStatesArgs,
               "states, or their gradients, through the summaries of consecutive parts");

    static std::span<const Config> configurations() { return kFoldStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, i64 sequences, const Target& target) {
        const Config& config = kFoldStatesConfigurations[args.dk > kFoldStatesConfigurations.front().columns];
        const i64 pairs = sequences * args.heads;
        if (pairs == 0 || args.dv == 0 || args.dk == 0) return;
        launch<StatesFold>(config, args, {pairs, ceil_div(args.dv, config.rows), 1}, target, [&](const auto&) {
            return fmt::format("{} parts, one after another; {} rows of a sequence and head a block", args.parts, config.rows);
        });
    }
};

}  // namespace gdn_cuda::gdn
