// structured/toeplitz_schur on the host: which configuration runs a problem, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/schur_plan.cuh>
#include <string>
#include <utility>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzSchurProblem {
    i64 systems, columns;
    int n;
    DType io;
};

// A row per thread while latency is the bound. The largest configurations have registers for only one right-hand side and the
// probe.
inline constexpr std::array kToeplitzSchurConfigurations = [] {
    std::array<ToeplitzSchurConfig, 14> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64}) {
        for (const auto& [threads, slots] : {std::pair{64, 1}, {256, 1}, {512, 2}})
            for (const int columns : {1, 3}) all[at++] = {.io = io, .threads = threads, .slots = slots, .columns = columns};
        all[at++] = {.io = io, .threads = 512, .slots = 8, .columns = 1};
    }
    return all;
}();
inline constexpr int kToeplitzSchurLongest = kToeplitzSchurConfigurations.back().rows();

inline ToeplitzSchurConfig toeplitz_schur_config(const ToeplitzSchurProblem& problem) {
    const auto fits = [&](const ToeplitzSchurConfig& config) { return config.io == problem.io && config.rows() >= problem.n; };
    const auto* smallest = std::ranges::find_if(kToeplitzSchurConfigurations, fits);
    const auto* wider = smallest + 1;
    const bool wide = problem.columns > 1 && wider != kToeplitzSchurConfigurations.end() && wider->rows() == smallest->rows();
    return wide ? *wider : *smallest;
}
inline std::string explain_toeplitz_schur(const ToeplitzSchurProblem& problem) {
    const ToeplitzSchurConfig config = toeplitz_schur_config(problem);
    return fmt::format("{} rows on {} threads, {} each; {} blocks of {} right-hand sides and a probe", problem.n,
                       config.threads, config.slots, problem.systems * ceil_div(problem.columns, config.columns),
                       config.columns);
}

struct ToeplitzSchur {
    GDN_KERNEL(ToeplitzSchur, structured, toeplitz_schur, ToeplitzSchurConfig, ToeplitzSchurArgs,
               "positive definite Toeplitz systems: Schur's and Levinson's recursions as one");

    static std::span<const Config> configurations() { return kToeplitzSchurConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzSchurConfigurations, ToeplitzSchurSharedPlan>(config);
    }

    static void run(const ToeplitzSchurProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const Config config = toeplitz_schur_config(problem);
        const i64 blocks =
            problem.systems *
            std::max<i64>(1, ceil_div(problem.columns, config.columns));  // info is computed even without columns
        launch<ToeplitzSchur>(config, args, {blocks, 1, 1}, target,
                              [&](const auto&) { return explain_toeplitz_schur(problem); });
    }
};

}  // namespace gdn_cuda::structured
