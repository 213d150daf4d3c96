// gdn/compute_o on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct ComputeO {
    using Config = ComputeOConfig;
    using Args = ChunkArgs;
    static constexpr const char *family = "gdn", *name = "compute_o", *config_type = "ComputeOConfig", *args_type = "ChunkArgs";
    static constexpr const char* summary = "outputs of every chunk from the state before it";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static constexpr std::array kConfigurations = {compute_o_config(128), compute_o_config(256)};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kConfigurations, ComputeOSharedPlan>(config, std::make_index_sequence<kConfigurations.size()>());
    }

    static void run(const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        launch<ComputeO>(compute_o_config(args.dk), args, {static_cast<unsigned>(chunks), static_cast<unsigned>(args.heads), 1},
                         target);
    }
};

}  // namespace gdn_cuda::gdn
