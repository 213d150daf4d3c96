// gdn/seq_state_update on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct SeqStateUpdate {
    using Config = SeqStateUpdateConfig;
    using Args = ChunkArgs;
    static constexpr const char *family = "gdn", *name = "seq_state_update", *config_type = "SeqStateUpdateConfig",
                                *args_type = "ChunkArgs";
    static constexpr const char* summary = "the state before every chunk and after the last; v' in place of u";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kSeqStateUpdateConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSeqStateUpdateConfigurations, SeqStateUpdateSharedPlan>(
            config, std::make_index_sequence<kSeqStateUpdateConfigurations.size()>());
    }

    static void run(const PieceProblem& problem, const Args& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0) return;
        const Config config = seq_state_update_config(problem, jit::device_traits(target.ordinal));
        launch<SeqStateUpdate>(config, args,
                               {problem.sequences * problem.heads, ceil_div(problem.dv, config.rows_per_block()), 1}, target);
    }
};

}  // namespace gdn_cuda::gdn
