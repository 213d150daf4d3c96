// structured/toeplitz_sums on the host: which configuration runs a problem, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/sums_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzMatvecProblem {
    i64 systems, columns;
    int n;
    DType io;
};

inline constexpr int kToeplitzAlwaysSums = 64;

// Complex dtypes have short strips only: where long strips would be faster, transforms are faster still.
inline constexpr std::array kToeplitzSumsConfigurations = [] {
    std::array<ToeplitzSumsConfig, 6> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128})
        for (const int strip : {4, 8})
            if (strip == 4 || !is_complex(io)) all[at++] = {.io = io, .strip = strip, .threads = 256};
    return all;
}();
inline i64 toeplitz_sums_blocks(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config) {
    return problem.systems * ceil_div(problem.n, config.rows());  // each with all right-hand sides of its system
}
// Modelled time of the sums on an H200 in microseconds, without launch and memory latency; blocks on the same SM queue.
inline double toeplitz_sums_us(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config,
                               const jit::DeviceTraits& device) {
    constexpr double kBlock = 0.57, kFmaEach = 1 / 160e3;
    const double blocks = static_cast<double>(toeplitz_sums_blocks(problem, config) * problem.columns) / device.multiprocessors;
    const int fmas = (is_complex(problem.io) ? 4 : 1) * (config.wide() ? 2 : 1);  // fp64 counts twice
    return std::max(1.0, blocks) * (kBlock + kFmaEach * fmas * config.rows() * problem.n);
}
// Short strips give more blocks, with less work each.
inline ToeplitzSumsConfig toeplitz_sums_config(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzSumsConfig* best = nullptr;
    for (const ToeplitzSumsConfig& config : kToeplitzSumsConfigurations)
        if (config.io == problem.io &&
            (best == nullptr || toeplitz_sums_us(problem, config, device) < toeplitz_sums_us(problem, *best, device)))
            best = &config;
    return *best;
}
// As many right-hand sides per block as leave `wanted` blocks, since T is loaded or transformed once per block.
inline i64 toeplitz_columns_per_block(i64 columns, i64 blocks, i64 wanted) {
    return std::max<i64>(1, ceil_div(columns, std::max<i64>(1, wanted / std::max<i64>(1, blocks))));
}
inline i64 toeplitz_sums_columns_per_block(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config,
                                           const jit::DeviceTraits& device) {
    constexpr i64 kResident = 4;  // blocks per SM that hide each other's latency
    return toeplitz_columns_per_block(problem.columns, toeplitz_sums_blocks(problem, config),
                                      kResident * device.multiprocessors);
}

inline std::string explain_toeplitz_sums(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzSumsConfig config = toeplitz_sums_config(problem, device);
    return fmt::format("sums: {} tiles of {} rows, {} right-hand sides a block", ceil_div(problem.n, config.rows()),
                       config.rows(), toeplitz_sums_columns_per_block(problem, config, device));
}

struct ToeplitzSums {
    GDN_KERNEL(ToeplitzSums, structured, toeplitz_sums, ToeplitzSumsConfig, ToeplitzMatvecArgs,
               "products with Toeplitz matrices and their transposes by sums");

    static std::span<const Config> configurations() { return kToeplitzSumsConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzSumsConfigurations, ToeplitzSumsSharedPlan>(config);
    }

    static void run(const ToeplitzMatvecProblem& problem, Args args, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = toeplitz_sums_config(problem, device);
        args.columns_per_block = toeplitz_sums_columns_per_block(problem, config, device);
        const i64 parts = ceil_div(problem.columns, args.columns_per_block);
        launch<ToeplitzSums>(config, args, {problem.systems, ceil_div(problem.n, config.rows()), parts}, target,
                             [&](const auto& of) { return explain_toeplitz_sums(problem, of); });
    }
};

}  // namespace gdn_cuda::structured
