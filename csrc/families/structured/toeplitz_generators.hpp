// structured/toeplitz_generators on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/generators_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

inline constexpr std::array kToeplitzGeneratorsConfigurations{
    ToeplitzGeneratorsConfig{DType::f32}, ToeplitzGeneratorsConfig{DType::f64}, ToeplitzGeneratorsConfig{DType::c64},
    ToeplitzGeneratorsConfig{DType::c128}};

struct ToeplitzGenerators {
    GDN_KERNEL(ToeplitzGenerators, structured, toeplitz_generators, ToeplitzGeneratorsConfig, ToeplitzGeneratorsArgs,
               "Fourier transforms of a Toeplitz system, as sums: the input of toeplitz_eliminate");

    static std::span<const Config> configurations() { return kToeplitzGeneratorsConfigurations; }
    static int threads(const Config& config) { return config.kThreads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(DType io, const Args& args, const Target& target) {
        if (args.rows == 0 || args.n == 0) return;
        const i64 blocks = args.rows * (args.columns / Config::kColumns + 1) * ceil_div(args.n, Config::kRows);
        launch<ToeplitzGenerators>({.io = io}, args, {blocks, 1, 1}, target, [&](const auto&) {
            return fmt::format("{} rows of {} systems, and {} right-hand sides with a probe each, for toeplitz_eliminate",
                               args.n, args.rows, args.columns);
        });
    }
};

}  // namespace gdn_cuda::structured
