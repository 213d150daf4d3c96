// gdn/prefill_mma on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct PrefillMma {
    using Config = PrefillMmaConfig;
    using Args = PrefillMmaArgs;
    static constexpr const char *family = "gdn", *name = "prefill_mma", *config_type = "PrefillMmaConfig",
                                *args_type = "PrefillMmaArgs";
    static constexpr const char* summary = "the chunked form on any tensor cores: prefill beside and before Hopper";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kPrefillMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kPrefillMmaConfigurations, PrefillMmaSharedPlan>(
            config, std::make_index_sequence<kPrefillMmaConfigurations.size()>());
    }

    static void run(const PrefillProblem& problem, const RecurrentArgs& recurrence, const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const Config config = prefill_mma_config(problem);
        const Args args{.recurrence = recurrence, .state = problem.state};
        const i64 tiles = ceil_div(problem.dv, config.rows_per_block());
        launch<PrefillMma>(config, args, {tiles, problem.heads, problem.sequences}, target);
    }
};

}  // namespace gdn_cuda::gdn
