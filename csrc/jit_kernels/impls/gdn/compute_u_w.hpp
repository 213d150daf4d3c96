// gdn/compute_u_w on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct ComputeUW {
    using Config = ComputeUWConfig;
    using Args = ChunkArgs;
    static constexpr const char *family = "gdn", *name = "compute_u_w", *config_type = "ComputeUWConfig",
                                *args_type = "ChunkArgs";
    static constexpr const char* summary = "u = T (beta v) and w = T (beta exp(G) k) of every chunk";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static constexpr std::array kConfigurations = {compute_u_w_config(128), compute_u_w_config(256)};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kConfigurations, ComputeUWSharedPlan>(config, std::make_index_sequence<kConfigurations.size()>());
    }

    static void run(const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        launch<ComputeUW>(compute_u_w_config(args.dk), args,
                          {static_cast<unsigned>(chunks), static_cast<unsigned>(args.heads), 1}, target);
    }
};

}  // namespace gdn_cuda::gdn
