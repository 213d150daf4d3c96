// structured/vandermonde_moments on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/vandermonde_moments_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::structured {

constexpr VandermondeMomentsConfig vandermonde_moments_config(DType io, int orders) {
    return {.io = io, .orders = orders, .side = io == DType::c128 ? 64 : 128, .tile = 16};
}
inline std::string explain_vandermonde_moments(DType io, int orders) {
    const VandermondeMomentsConfig config = vandermonde_moments_config(io, orders);
    return fmt::format("{} moment{} of {} steps a block, which its shared memory holds in {}", orders, orders == 1 ? "" : "s",
                       config.side * config.side, io == DType::c128 ? "fp64" : "fp32");
}
inline constexpr std::array kVandermondeMomentsConfigurations = {
    vandermonde_moments_config(DType::c64, 1), vandermonde_moments_config(DType::c64, 2),
    vandermonde_moments_config(DType::c128, 1), vandermonde_moments_config(DType::c128, 2)};

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
        if (blocks == 0) return;
        launch<VandermondeMoments>(config, args, {blocks, 1, 1}, target,
                                   [&](const auto&) { return explain_vandermonde_moments(config.io, config.orders); });
    }
};

}  // namespace gdn_cuda::structured
