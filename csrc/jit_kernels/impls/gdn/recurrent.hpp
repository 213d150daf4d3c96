// gdn/recurrent on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct Recurrent {
    using Config = RecurrentConfig;
    using Args = RecurrentArgs;
    static constexpr const char *family = "gdn", *name = "recurrent", *config_type = "RecurrentConfig",
                                *args_type = "RecurrentArgs";
    static constexpr const char* summary =
        "the recurrence token by token: packed batches, odd shapes, rows that do not start on 16 bytes";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, recurrent_configurations);
    }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const RecurrentProblem& problem, const Args& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0 || args.dv == 0) return;
        const Config config = recurrent_config(problem, jit::device_traits(target.ordinal));
        const i64 tiles = ceil_div(args.dv, config.rows_per_block());
        launch<Recurrent>(config, args, {tiles, args.heads, std::min<i64>(args.sequences, kMostBlocks[2])}, target);
    }
};

}  // namespace gdn_cuda::gdn
