// scan/diagonal_scan_parts on the host: its configurations, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/diagonal/scan_parts_plan.cuh>

#include "diagonal_parts.hpp"

namespace gdn_cuda::scan {

struct DiagonalScanParts {
    GDN_KERNEL(DiagonalScanParts, scan, diagonal_scan_parts, DiagonalScanPartsConfig, DiagonalScanPartsArgs,
               "maps of parts of a row that is split among blocks");

    static constexpr std::array kConfigurations = {Config{kDiagonalThreads, false, false},
                                                   Config{kDiagonalThreads, true, false}, Config{kDiagonalThreads, false, true},
                                                   Config{kDiagonalThreads, true, true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const DiagonalProblem& problem, const Args& args, const Target& target) {
        launch<DiagonalScanParts>({.threads = kDiagonalThreads, .varying = problem.varying, .reverse = problem.reverse}, args,
                                  {problem.rows * args.inputs.parts, 1, 1}, target,
                                  [&](const auto& device) { return explain_diagonal_parts_on(problem, device); });
    }
};

}  // namespace gdn_cuda::scan
