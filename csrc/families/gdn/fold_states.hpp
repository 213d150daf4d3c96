// Host side of gdn/fold_states: configurations and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/fold_states_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kFoldStatesConfigurations = {
    FoldStatesConfig{.columns = 128, .rows = 16}, FoldStatesConfig{.columns = 256, .rows = 16},
    FoldStatesConfig{.columns = 128, .rows = 8}, FoldStatesConfig{.columns = 256, .rows = 8}};

// A block's time for a part is that of its rows: few where blocks of many would leave multiprocessors without one. Rows have
// the same bits in either.
inline const FoldStatesConfig& fold_states_config(int dk, int dv, i64 pairs, int multiprocessors) {
    const bool is_wide = dk > kFoldStatesConfigurations[0].columns,
               is_few = pairs * ceil_div(dv, kFoldStatesConfigurations[0].rows) < multiprocessors;
    return kFoldStatesConfigurations[2 * is_few + is_wide];
}

struct StatesFold {
    GDN_KERNEL(StatesFold, gdn, fold_states, FoldStatesConfig, FoldStatesArgs,
               "states, or their gradients, through the summaries of consecutive parts");

    static std::span<const Config> configurations() { return kFoldStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void prefetch(int dk, int dv, i64 pairs, const Target& target) {
        gdn_cuda::prefetch<StatesFold>(fold_states_config(dk, dv, pairs, jit::device_traits(target.ordinal).multiprocessors),
                                       target);
    }
    static void run(const Args& args, i64 sequences, const Target& target) {
        const i64 pairs = sequences * args.heads;
        if (pairs == 0 || args.dv == 0 || args.dk == 0) return;
        const Config& config = fold_states_config(args.dk, args.dv, pairs, jit::device_traits(target.ordinal).multiprocessors);
        launch<StatesFold>(config, args, {pairs, ceil_div(args.dv, config.rows), 1}, target, [&](const auto&) {
            return fmt::format("{} parts, one after another; {} rows of a sequence and head a block", args.parts, config.rows);
        });
    }
};

}  // namespace gdn_cuda::gdn
