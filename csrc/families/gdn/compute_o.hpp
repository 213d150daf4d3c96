// Host side of gdn/compute_o: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/compute_o_plan.cuh>

#include "../../launch/spec.hpp"
#include "chunk_step_problem.hpp"

namespace gdn_cuda::gdn {

constexpr ComputeOConfig compute_o_config(int dk, DType state, bool aligned) {
    return {.head_k = chunk_step_head_k(dk), .state = state, .aligned = aligned};
}
inline constexpr std::array kComputeOConfigurations = [] {
    std::array<ComputeOConfig, 4 * kChunkStepHeadK.size()> all{};
    size_t n = 0;
    for (const bool aligned : {true, false})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int head_k : kChunkStepHeadK) all[n++] = compute_o_config(head_k, state, aligned);
    return all;
}();

struct ComputeO {
    GDN_KERNEL(ComputeO, gdn, compute_o, ComputeOConfig, ChunkArgs, "outputs of every chunk from the state before it",
               .uses_cutlass = true);

    static std::span<const Config> configurations() { return kComputeOConfigurations; }
    static int threads(const Config& config) { return config.kThreads; }
    static int shared_bytes(const Config& config) { return plan_bytes<kComputeOConfigurations, ComputeOSharedPlan>(config); }

    static Blocks blocks(const ChunkStepProblem& problem, i64 chunks) {
        return {chunks * problem.heads, ceil_div(problem.dv, Config::kValueColumns), 1};
    }
    static void run(const ChunkStepProblem& problem, const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        const Config config = compute_o_config(problem.dk, problem.state, problem.aligned);
        const Blocks all = blocks(problem, chunks);
        launch<ComputeO>(config, args, all, target,
                         [&](const auto&) { return explain_chunk_step(problem, config.head_k, all[0] * all[1]); });
    }
};

}  // namespace gdn_cuda::gdn
