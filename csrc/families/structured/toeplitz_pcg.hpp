// structured/toeplitz_pcg on the host: which configuration runs a problem, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/pcg_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzPcgProblem {
    i64 systems, columns;
    int n;
    DType io;
};

inline constexpr std::array kToeplitzPcgConfigurations = [] {
    std::array<ToeplitzPcgConfig, 2> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64}) all[at++] = {.io = io, .transform = 4096, .threads = 512};
    return all;
}();
inline constexpr int kToeplitzPcgLongest = kToeplitzPcgConfigurations.back().rows();

inline ToeplitzPcgConfig toeplitz_pcg_config(const ToeplitzPcgProblem& problem) {
    return *std::ranges::find(kToeplitzPcgConfigurations, problem.io, &ToeplitzPcgConfig::io);
}
// As many blocks as run at the same time, each looping over right-hand sides, since every block needs scratch memory.
inline i64 toeplitz_pcg_blocks(const ToeplitzPcgProblem& problem, const jit::DeviceTraits& device) {
    return std::min<i64>(problem.systems * (problem.columns + 1), device.multiprocessors);
}
inline std::string explain_toeplitz_pcg(const ToeplitzPcgProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzPcgConfig config = toeplitz_pcg_config(problem);
    return fmt::format(
        "transforms of {} values for {} rows on {} threads; {} right-hand sides and a probe each of {} systems, in {} blocks",
        config.transform, problem.n, config.threads, problem.columns, problem.systems, toeplitz_pcg_blocks(problem, device));
}

struct ToeplitzPcg {
    GDN_KERNEL(ToeplitzPcg, structured, toeplitz_pcg, ToeplitzPcgConfig, ToeplitzPcgArgs,
               "large positive definite Toeplitz systems: conjugate gradients, all steps in a block");

    static std::span<const Config> configurations() { return kToeplitzPcgConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzPcgConfigurations, ToeplitzPcgSharedPlan>(config);
    }
    // Size of `args.scratch` in doubles.
    static i64 scratch(const ToeplitzPcgProblem& problem, int ordinal) {
        return toeplitz_pcg_blocks(problem, jit::device_traits(ordinal)) * toeplitz_pcg_config(problem).scratch();
    }

    static void run(const ToeplitzPcgProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const i64 blocks = toeplitz_pcg_blocks(problem, jit::device_traits(target.ordinal));
        launch<ToeplitzPcg>(toeplitz_pcg_config(problem), args, {blocks, 1, 1}, target,
                            [&](const auto& device) { return explain_toeplitz_pcg(problem, device); });
    }
};

}  // namespace gdn_cuda::structured
