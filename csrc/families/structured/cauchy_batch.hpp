// structured/cauchy_batch on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/cauchy/batch_plan.cuh>

#include "../../launch/spec.hpp"
#include "cauchy.hpp"

namespace gdn_cuda::structured {

inline constexpr std::array kCauchyBatchConfigurations = {CauchyBatchConfig{DType::f32}, CauchyBatchConfig{DType::bf16},
                                                          CauchyBatchConfig{DType::f16}};

struct CauchyBatch {
    GDN_KERNEL(CauchyBatch, structured, cauchy_batch, CauchyBatchConfig, CauchyArgs,
               "real sums for sixteen rows of residues over the same poles at a time");

    static std::span<const Config> configurations() { return kCauchyBatchConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(CauchyBatchSharedPlan); }

    static void run(const CauchyProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.points == 0) return;
        const i64 blocks = problem.rows / Config::kRows * ceil_div(problem.points, Config::kPoints);
        launch<CauchyBatch>(Config{problem.io}, args, {blocks, 1, 1}, target,
                            [&](const auto& device) { return explain_cauchy(problem, device, tuned<CauchyTuning>(device)); });
    }
};

}  // namespace gdn_cuda::structured
