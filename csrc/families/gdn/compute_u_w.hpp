// Host side of gdn/compute_u_w: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/compute_u_w_plan.cuh>

#include "../../launch/spec.hpp"
#include "chunk_step_problem.hpp"

namespace gdn_cuda::gdn {

constexpr ComputeUWConfig compute_u_w_config(int dk, bool aligned) {
    return {.head_k = chunk_step_head_k(dk), .aligned = aligned};
}
inline constexpr std::array kComputeUWConfigurations = [] {
    std::array<ComputeUWConfig, 2 * kChunkStepHeadK.size()> all{};
    size_t n = 0;
    for (const bool aligned : {true, false})
        for (const int head_k : kChunkStepHeadK) all[n++] = compute_u_w_config(head_k, aligned);
    return all;
}();

struct ComputeUW {
    GDN_KERNEL(ComputeUW, gdn, compute_u_w, ComputeUWConfig, ChunkArgs,
               "u = T (beta v) and w = T (beta exp(G) k) of every chunk", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kComputeUWConfigurations; }
    static int threads(const Config& config) { return config.kThreads; }
    static int shared_bytes(const Config& config) { return plan_bytes<kComputeUWConfigurations, ComputeUWSharedPlan>(config); }

    static Blocks blocks(const ChunkStepProblem& problem, i64 chunks) { return {chunks * problem.heads, 1, 1}; }
    static void run(const ChunkStepProblem& problem, const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        const Config config = compute_u_w_config(problem.dk, problem.aligned);
        launch<ComputeUW>(config, args, blocks(problem, chunks), target,
                          [&](const auto&) { return explain_chunk_step(problem, config.head_k, blocks(problem, chunks)[0]); });
    }
};

}  // namespace gdn_cuda::gdn
