// Host side of layers/gating: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/layers/gating_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"

namespace gdn_cuda::layers {

struct GatingProblem {
    i64 rows;
    int heads;
    DType io;
    bool aligned;
};

inline GatingConfig gating_config(const GatingProblem& problem) {
    const bool wide = problem.aligned && problem.heads % 8 == 0;
    return {.io = problem.io, .vector = wide ? 8 : 1, .threads = 256};
}

// One wave of blocks at most: each thread reads rates and biases once.
inline unsigned gating_blocks(const GatingProblem& problem, const GatingConfig& config, const jit::DeviceTraits& device) {
    const i64 threads = problem.rows * (problem.heads / config.vector);
    return static_cast<unsigned>(std::clamp<i64>(ceil_div(threads, config.threads), 1,
                                                 config.blocks_per_multiprocessor(device.capability) * device.multiprocessors));
}

inline std::string explain_gating(const GatingProblem& problem, const jit::DeviceTraits& device) {
    const GatingConfig config = gating_config(problem);
    return fmt::format("{}; {} blocks for {} multiprocessors",
                       config.vector > 1 ? "rows of whole 16-byte units: eight heads a thread"
                                         : "heads not in whole 16-byte units: one a thread",
                       gating_blocks(problem, config, device), device.multiprocessors);
}

struct Gating {
    GDN_KERNEL(Gating, layers, gating, GatingConfig, GatingArgs, "beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias)");

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, [] {
            std::vector<Config> configs;
            for (DType io : {DType::bf16, DType::f16, DType::f32})
                for (bool aligned : {true, false}) configs.push_back(gating_config({1, 8, io, aligned}));
            return configs;
        });
    }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const GatingProblem& problem, const Args& args, const Target& target) {
        if (args.rows == 0 || args.heads == 0) return;
        const Config config = gating_config(problem);
        launch<Gating>(config, args, {gating_blocks(problem, config, jit::device_traits(target.ordinal)), 1, 1}, target,
                       [&](const auto& device) { return explain_gating(problem, device); });
    }
};

}  // namespace gdn_cuda::layers
