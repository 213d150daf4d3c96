// structured/cauchy_backward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/cauchy/backward_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct CauchyBackwardProblem {
    i64 rows, lines;  // lines: poles or points per row
    DType io;
    bool conj, of_points;
};

inline constexpr int kCauchyBackwardLines = 8, kCauchyBackwardThreads = 128;

constexpr CauchyBackwardConfig cauchy_backward_config(DType io, bool conj, bool of_points, int lines) {
    return {.io = io, .conj = conj, .of_points = of_points, .lines = lines, .threads = kCauchyBackwardThreads};
}
inline i64 cauchy_backward_blocks(const CauchyBackwardProblem& problem, int lines) {
    return problem.rows * ceil_div(problem.lines, lines);
}
// More lines per block read the other operand less often, if that leaves blocks for every SM.
inline CauchyBackwardConfig cauchy_backward_config(const CauchyBackwardProblem& problem, const jit::DeviceTraits& device) {
    const bool many = cauchy_backward_blocks(problem, kCauchyBackwardLines) >= 2 * device.multiprocessors;
    return cauchy_backward_config(problem.io, problem.conj, problem.of_points, many ? kCauchyBackwardLines : 1);
}

inline std::string explain_cauchy_backward(const CauchyBackwardProblem& problem, const jit::DeviceTraits& device) {
    const int lines = cauchy_backward_config(problem, device).lines;
    return fmt::format("{} {}{} a block give {} blocks for {} multiprocessors", lines, problem.of_points ? "point" : "pole",
                       lines == 1 ? "" : "s", cauchy_backward_blocks(problem, lines), device.multiprocessors);
}

inline constexpr std::array kCauchyBackwardConfigurations = [] {
    std::array<CauchyBackwardConfig, 32> all{};
    size_t n = 0;
    for (const int lines : {1, kCauchyBackwardLines})
        for (const bool of_points : {false, true}) {
            for (const DType io : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128})
                all[n++] = cauchy_backward_config(io, false, of_points, lines);
            for (const DType io : {DType::c64, DType::c128}) all[n++] = cauchy_backward_config(io, true, of_points, lines);
        }
    return all;
}();

struct CauchyBackward {
    GDN_KERNEL(CauchyBackward, structured, cauchy_backward, CauchyBackwardConfig, CauchyBackwardArgs,
               "gradients of sums over poles: of residues and poles, or of points");

    static std::span<const Config> configurations() { return kCauchyBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const CauchyBackwardProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.lines == 0) return;
        const Config config = cauchy_backward_config(problem, jit::device_traits(target.ordinal));
        launch<CauchyBackward>(config, args, {cauchy_backward_blocks(problem, config.lines), 1, 1}, target,
                               [&](const auto& device) { return explain_cauchy_backward(problem, device); });
    }
};

}  // namespace gdn_cuda::structured
