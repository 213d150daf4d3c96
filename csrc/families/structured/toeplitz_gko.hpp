// structured/toeplitz_gko on the host: which configuration runs a problem, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/gko_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzGkoProblem {
    i64 systems, columns;  // columns: without the probe
    int n;
    DType io;
};

// A row and a column per thread while latency is the bound; two of each in the largest configuration, where three right-hand
// sides would spill.
inline constexpr std::array kToeplitzGkoConfigurations = [] {
    std::array<ToeplitzGkoConfig, 20> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128}) {
        for (const int threads : {64, 256})
            for (const int columns : {2, 3}) all[at++] = {.io = io, .threads = threads, .slots = 1, .columns = columns};
        all[at++] = {.io = io, .threads = 512, .slots = 2, .columns = 2};
    }
    return all;
}();
inline constexpr int kToeplitzGkoLongest = kToeplitzGkoConfigurations.back().rows();

// Every block repeats the elimination, so few blocks with more right-hand sides each are fastest.
inline ToeplitzGkoConfig toeplitz_gko_config(const ToeplitzGkoProblem& problem) {
    const auto fits = [&](const ToeplitzGkoConfig& config) { return config.io == problem.io && config.rows() >= problem.n; };
    const auto* smallest = std::ranges::find_if(kToeplitzGkoConfigurations, fits);
    const auto* wider = smallest + 1;
    const bool wide = problem.columns > 1 && wider != kToeplitzGkoConfigurations.end() && wider->rows() == smallest->rows();
    return wide ? *wider : *smallest;
}
inline std::string explain_toeplitz_gko(const ToeplitzGkoProblem& problem) {
    const ToeplitzGkoConfig config = toeplitz_gko_config(problem);
    return fmt::format("{} rows on {} threads, {} each; {} blocks of {} right-hand sides, a probe among them", problem.n,
                       config.threads, config.slots, problem.systems * (problem.columns / config.columns + 1), config.columns);
}

struct ToeplitzGko {
    GDN_KERNEL(ToeplitzGko, structured, toeplitz_gko, ToeplitzGkoConfig, ToeplitzGkoArgs,
               "any Toeplitz system: its Fourier transform's generators, eliminated with pivots");

    static std::span<const Config> configurations() { return kToeplitzGkoConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const ToeplitzGkoProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.n == 0) return;
        const Config config = toeplitz_gko_config(problem);
        const i64 blocks = problem.systems * (problem.columns / config.columns + 1);
        launch<ToeplitzGko>(config, args, {blocks, 1, 1}, target, [&](const auto&) { return explain_toeplitz_gko(problem); });
    }
};

}  // namespace gdn_cuda::structured
