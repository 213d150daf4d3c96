// gdn/prefill_chain on the host.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_chain_plan.cuh>

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct PrefillChain {
    using Config = PrefillChainConfig;
    using Args = PrefillChainArgs;
    static constexpr const char *family = "gdn", *name = "prefill_chain", *config_type = "PrefillChainConfig",
                                *args_type = "PrefillChainArgs";
    static constexpr const char* summary = "states from segment to segment of sequences that gdn/prefill splits";
    static constexpr int min_capability = 90, max_capability = 90;  // gdn/prefill's
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kPrefillChainConfigurations; }
    static int threads(const Config& config) { return config.head_k; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kPrefillChainConfigurations, PrefillChainSharedPlan>(
            config, std::make_index_sequence<kPrefillChainConfigurations.size()>());
    }

    static void run(const Args& args, i64 sequences, const Target& target) {
        const Config config = prefill_chain_config(args.dk);
        launch<PrefillChain>(config, args,
                             {static_cast<unsigned>(ceil_div(args.dv, config.rows)), static_cast<unsigned>(args.heads),
                              static_cast<unsigned>(sequences)},
                             target);
    }
};

}  // namespace gdn_cuda::gdn
