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

    static constexpr std::array kConfigurations = {seq_state_update_config(128), seq_state_update_config(256)};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kConfigurations, SeqStateUpdateSharedPlan>(config,
                                                                     std::make_index_sequence<kConfigurations.size()>());
    }

    static void run(const Args& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0) return;
        const Config config = seq_state_update_config(args.dk);
        launch<SeqStateUpdate>(config, args,
                               {static_cast<unsigned>(args.sequences), static_cast<unsigned>(args.heads),
                                static_cast<unsigned>(ceil_div(args.dv, config.rows_per_block))},
                               target);
    }
};

}  // namespace gdn_cuda::gdn
