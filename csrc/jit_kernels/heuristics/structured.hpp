// Which configuration of a structured kernel runs a problem, and why.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/cauchy_plan.cuh>
#include <string>

#include "../../jit/device.hpp"
#include "../../jit/text.hpp"

namespace gdn_cuda::structured {

struct CauchyProblem {
    i64 rows, shared_rows, points;
    DType io;
    bool conj;
};

inline constexpr int kCauchyRows = 4, kCauchyPoints = 4, kCauchyThreads = 128;

constexpr CauchyConfig cauchy_config(DType io, bool conj, int rows, int points) {
    return {.io = io, .conj = conj, .rows = rows, .points = points, .threads = kCauchyThreads, .tile = 64};
}
inline i64 cauchy_blocks(const CauchyProblem& problem, const CauchyConfig& config) {
    return problem.rows / config.rows * ceil_div(problem.points, config.points_per_block());
}
// Rows over the same poles share reciprocals. More points a thread read poles less often, if that leaves blocks for everyone.
inline CauchyConfig cauchy_config(const CauchyProblem& problem, const jit::DeviceTraits& device) {
    const int rows = problem.shared_rows % kCauchyRows == 0 ? kCauchyRows : 1;
    const CauchyConfig many = cauchy_config(problem.io, problem.conj, rows, kCauchyPoints);
    return cauchy_blocks(problem, many) >= 2 * device.multiprocessors ? many : cauchy_config(problem.io, problem.conj, rows, 1);
}

inline std::string explain_cauchy(const CauchyProblem& problem, const jit::DeviceTraits& device) {
    const CauchyConfig config = cauchy_config(problem, device);
    return fmt::format("{} row{} of {} over the same poles and {} point{} a thread give {} blocks for {} multiprocessors",
                       config.rows, config.rows == 1 ? "" : "s", problem.shared_rows, config.points,
                       config.points == 1 ? "" : "s", cauchy_blocks(problem, config), device.multiprocessors);
}

inline constexpr std::array kCauchyConfigurations = [] {
    std::array<CauchyConfig, 32> all{};
    size_t n = 0;
    for (const int rows : {1, kCauchyRows})
        for (const int points : {1, kCauchyPoints}) {
            for (const DType io : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128})
                all[n++] = cauchy_config(io, false, rows, points);
            for (const DType io : {DType::c64, DType::c128}) all[n++] = cauchy_config(io, true, rows, points);
        }
    return all;
}();

}  // namespace gdn_cuda::structured
