// structured/vandermonde_moments on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/vandermonde/moments_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct VandermondeMomentsProblem {
    i64 rows, steps;  // of the summed values
    DType io;
    int orders;
    i64 poles;

    GDN_FIELDS(rows, steps, io, orders, poles)
};

// The largest square first.
inline constexpr std::array kVandermondeMomentsConfigurations = [] {
    std::array<VandermondeMomentsConfig, 10> all{};
    size_t n = 0;
    for (const int orders : {1, 2}) {
        for (const int side : {128, 64, 32}) all[n++] = {.io = DType::c64, .orders = orders, .side = side, .tile = 16};
        for (const int side : {64, 32}) all[n++] = {.io = DType::c128, .orders = orders, .side = side, .tile = 16};
    }
    return all;
}();
inline i64 vandermonde_moments_squares(const VandermondeMomentsConfig& config, i64 steps) {
    return ceil_div(steps, config.square());
}
inline i64 vandermonde_moments_blocks(const VandermondeMomentsProblem& problem, const VandermondeMomentsConfig& config) {
    return problem.rows * vandermonde_moments_squares(config, problem.steps) * ceil_div(problem.poles, config.poles());
}
// A block multiplies all of its square, including the part past the last step. A square of half the side has a quarter of the
// values and takes slightly more than a quarter of the time, so it is faster if three small squares suffice in place of a large
// one; it also spreads few rows over more SMs.
inline VandermondeMomentsConfig vandermonde_moments_config(const VandermondeMomentsProblem& problem,
                                                           const jit::DeviceTraits& device) {
    VandermondeMomentsConfig chosen{};
    for (const VandermondeMomentsConfig& config : kVandermondeMomentsConfigurations) {
        if (config.io != problem.io || config.orders != problem.orders) continue;
        chosen = config;
        const i64 quarters = ceil_div(problem.steps, config.square() / 4);
        if (quarters > 3 * vandermonde_moments_squares(config, problem.steps) &&
            vandermonde_moments_blocks(problem, config) >= device.multiprocessors)
            break;
    }
    return chosen;
}
inline std::string explain_vandermonde_moments(const VandermondeMomentsProblem& problem, const jit::DeviceTraits& device) {
    const VandermondeMomentsConfig config = vandermonde_moments_config(problem, device);
    return fmt::format("{} moment{} of {} steps a block, which its shared memory holds in {}: {} blocks for {} multiprocessors",
                       problem.orders, problem.orders == 1 ? "" : "s", config.square(),
                       problem.io == DType::c128 ? "fp64" : "fp32", vandermonde_moments_blocks(problem, config),
                       device.multiprocessors);
}

struct VandermondeMoments {
    GDN_KERNEL(VandermondeMoments, structured, vandermonde_moments, VandermondeMomentsConfig, VandermondeMomentsArgs,
               "values times powers, summed, and the same with step indices: vandermonde transposed");

    static std::span<const Config> configurations() { return kVandermondeMomentsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kVandermondeMomentsConfigurations, VandermondeMomentsSharedPlan>(config);
    }

    static void run(const VandermondeMomentsProblem& problem, const Config& config, const Args& args, const Target& target) {
        const i64 blocks = vandermonde_moments_blocks(problem, config);
        if (blocks == 0) return;
        launch<VandermondeMoments>(config, args, {blocks, 1, 1}, target,
                                   [&](const auto& device) { return explain_vandermonde_moments(problem, device); });
    }
};

}  // namespace gdn_cuda::structured
