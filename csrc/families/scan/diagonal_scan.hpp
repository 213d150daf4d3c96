// scan/diagonal_scan on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/diagonal_scan_plan.cuh>

#include "../../kernels/spec.hpp"
#include "diagonal_parts.hpp"

namespace gdn_cuda::scan {

struct DiagonalScan {
    using Config = DiagonalScanConfig;
    using Args = DiagonalScanArgs;
    static constexpr const char *family = "scan", *name = "diagonal_scan", *config_type = "DiagonalScanConfig",
                                *args_type = "DiagonalScanArgs";
    static constexpr const char* summary = "the recurrence of a diagonal system, threads along time: S5, LRU";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static constexpr std::array kConfigurations = {Config{kDiagonalThreads, false}, Config{kDiagonalThreads, true},
                                                   Config{kDiagonalThreadsOfShort, false},
                                                   Config{kDiagonalThreadsOfShort, true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const DiagonalProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0) return;
        launch<DiagonalScan>({.threads = diagonal_threads(problem), .varying = problem.varying}, args,
                             {problem.rows * args.inputs.parts, 1, 1}, target,
                             [&](const auto& device) { return explain_diagonal_parts_on(problem, device); });
    }
};

}  // namespace gdn_cuda::scan
