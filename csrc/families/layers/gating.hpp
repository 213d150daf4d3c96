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
    int columns;
    DType io;
    bool aligned;
    bool channels = false, bounded = false;
    int channels_per_head = 0;
};

inline GatingConfig gating_config(const GatingProblem& problem) {
    const int contiguous = problem.channels ? problem.channels_per_head : problem.columns;
    const bool wide = problem.aligned && contiguous % 8 == 0;
    return {.io = problem.io, .vector = wide ? 8 : 1, .threads = 256, .channels = problem.channels, .bounded = problem.bounded};
}

// One wave of blocks at most: each thread reads rates and biases once.
inline unsigned gating_blocks(const GatingProblem& problem, const GatingConfig& config, const jit::DeviceTraits& device) {
    const i64 threads = problem.rows * (problem.columns / config.vector);
    return static_cast<unsigned>(std::clamp<i64>(ceil_div(threads, config.threads), 1,
                                                 config.blocks_per_multiprocessor(device.capability) * device.multiprocessors));
}

inline std::string explain_gating(const GatingProblem& problem, const jit::DeviceTraits& device) {
    const GatingConfig config = gating_config(problem);
    const char* columns = config.channels ? "channels" : "heads";
    return fmt::format("{}; {} blocks for {} multiprocessors",
                       config.vector > 1 ? fmt::format("rows of whole 16-byte units: eight {} a thread", columns)
                                         : fmt::format("{} not in whole 16-byte units: one a thread", columns),
                       gating_blocks(problem, config, device), device.multiprocessors);
}

struct Gating {
    GDN_KERNEL(Gating, layers, gating, GatingConfig, GatingArgs,
               "beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias); gates of channels, with a bound or without");

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, [] {
            std::vector<Config> configs;
            for (DType io : {DType::bf16, DType::f16, DType::f32})
                for (bool aligned : {true, false}) {
                    configs.push_back(gating_config({1, 8, io, aligned}));
                    for (bool bounded : {true, false}) configs.push_back(gating_config({1, 8, io, aligned, true, bounded, 8}));
                }
            return configs;
        });
    }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const GatingProblem& problem, const Args& args, const Target& target) {
        if (args.rows == 0 || args.columns == 0) return;
        const Config config = gating_config(problem);
        launch<Gating>(config, args, {gating_blocks(problem, config, jit::device_traits(target.ordinal)), 1, 1}, target,
                       [&](const auto& device) { return explain_gating(problem, device); });
    }
};

}  // namespace gdn_cuda::layers
