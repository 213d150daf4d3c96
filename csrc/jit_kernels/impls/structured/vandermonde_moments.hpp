// structured/vandermonde_moments on the host.
#pragma once

#include "../../heuristics/structured.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct VandermondeMoments {
    using Config = VandermondeMomentsConfig;
    using Args = VandermondeMomentsArgs;
    static constexpr const char *family = "structured", *name = "vandermonde_moments",
                                *config_type = "VandermondeMomentsConfig", *args_type = "VandermondeMomentsArgs";
    static constexpr const char* summary = "numbers summed against powers, and their multiples: vandermonde transposed";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kVandermondeMomentsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kVandermondeMomentsConfigurations, VandermondeMomentsSharedPlan>(
            config, std::make_index_sequence<kVandermondeMomentsConfigurations.size()>());
    }

    static i64 squares(const Config& config, i64 steps) { return ceil_div(steps, config.square()); }
    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 blocks = args.rows * squares(config, args.steps) * ceil_div(args.pole_count, config.poles());
        if (blocks > 0) launch<VandermondeMoments>(config, args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
