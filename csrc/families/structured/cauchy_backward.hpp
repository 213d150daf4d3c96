// structured/cauchy_backward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/cauchy/backward_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct CauchyBackwardProblem {
    i64 rows, outputs;  // outputs: poles or points per row
    DType io;
    bool conj, wrt_points;
};

inline constexpr int kCauchyBackwardOutputs = 8, kCauchyBackwardThreads = 128;

constexpr CauchyBackwardConfig cauchy_backward_config(DType io, bool conj, bool wrt_points, int outputs) {
    return {.io = io, .conj = conj, .wrt_points = wrt_points, .outputs = outputs, .threads = kCauchyBackwardThreads};
}
inline i64 cauchy_backward_blocks(const CauchyBackwardProblem& problem, int outputs) {
    return problem.rows * ceil_div(problem.outputs, outputs);
}
// With more outputs per block the other operand is read less often, but every SM must get blocks.
inline CauchyBackwardConfig cauchy_backward_config(const CauchyBackwardProblem& problem, const jit::DeviceTraits& device) {
    const bool many = cauchy_backward_blocks(problem, kCauchyBackwardOutputs) >= 2 * device.multiprocessors;
    return cauchy_backward_config(problem.io, problem.conj, problem.wrt_points, many ? kCauchyBackwardOutputs : 1);
}

inline std::string explain_cauchy_backward(const CauchyBackwardProblem& problem, const jit::DeviceTraits& device) {
    const int outputs = cauchy_backward_config(problem, device).outputs;
    return fmt::format("{} {}{} a block give {} blocks for {} multiprocessors", outputs, problem.wrt_points ? "point" : "pole",
                       outputs == 1 ? "" : "s", cauchy_backward_blocks(problem, outputs), device.multiprocessors);
}

inline constexpr std::array kCauchyBackwardConfigurations = [] {
    std::array<CauchyBackwardConfig, 32> all{};
    size_t n = 0;
    for (const int outputs : {1, kCauchyBackwardOutputs})
        for (const bool wrt_points : {false, true}) {
            for (const DType io : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128})
                all[n++] = cauchy_backward_config(io, false, wrt_points, outputs);
            for (const DType io : {DType::c64, DType::c128}) all[n++] = cauchy_backward_config(io, true, wrt_points, outputs);
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
        if (problem.rows == 0 || problem.outputs == 0) return;
        const Config config = cauchy_backward_config(problem, jit::device_traits(target.ordinal));
        launch<CauchyBackward>(config, args, {cauchy_backward_blocks(problem, config.outputs), 1, 1}, target,
                               [&](const auto& device) { return explain_cauchy_backward(problem, device); });
    }
};

}  // namespace gdn_cuda::structured
