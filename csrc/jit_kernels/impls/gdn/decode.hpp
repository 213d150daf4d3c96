// gdn/decode on the host.
#pragma once

#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct Decode {
    using Config = DecodeConfig;
    using Args = DecodeArgs;
    static constexpr const char *family = "gdn", *name = "decode", *config_type = "DecodeConfig", *args_type = "DecodeArgs";
    static constexpr const char* summary = "one token a sequence, slots of a state pool updated in place: the serving step";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, decode_configurations);
    }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return config.shared_bytes(); }

    static void run(const DecodeProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0) return;
        const auto [config, steps] = decode_choice(problem, jit::device_traits(target.ordinal));
        args.steps = steps;
        const i64 tiles = ceil_div(args.dv, config.rows_per_step() * steps);
        launch<Decode>(config, args, {tiles, problem.heads, problem.sequences}, target);
    }
};

}  // namespace gdn_cuda::gdn
