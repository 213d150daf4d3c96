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

    static std::span<const Config> configurations() { return kComputeOConfigurations; }
    static int threads(const Config& config) { return config.kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kComputeOConfigurations, ComputeOSharedPlan>(
            config, std::make_index_sequence<kComputeOConfigurations.size()>());
    }

    static Blocks blocks(const PieceProblem& problem, i64 chunks) {
        return {chunks * problem.heads, ceil_div(problem.dv, Config::kValueColumns), 1};
    }
    static void run(const PieceProblem& problem, const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        launch<ComputeO>(compute_o_config(problem.dk, problem.state, problem.aligned), args, blocks(problem, chunks), target);
    }
};

}  // namespace gdn_cuda::gdn
