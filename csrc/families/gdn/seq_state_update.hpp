// Host side of gdn/seq_state_update: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/seq_state_update_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "chunk_step_problem.hpp"

namespace gdn_cuda::gdn {

constexpr SeqStateUpdateConfig seq_state_update_config(int dk, int teams, bool aligned) {
    const int head_k = chunk_step_head_k(dk);
    return {.head_k = head_k, .teams = teams, .stages = head_k <= 128 ? 2 : 1, .aligned = aligned};
}
// The teams of a block share its loads of w and k; fewer teams per block occupy more SMs.
inline SeqStateUpdateConfig seq_state_update_config(const ChunkStepProblem& problem, const jit::DeviceTraits& device) {
    const SeqStateUpdateConfig four = seq_state_update_config(problem.dk, 4, problem.aligned);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, four.rows_per_block());
    return problem.aligned && blocks < device.multiprocessors ? seq_state_update_config(problem.dk, 2, true) : four;
}
inline constexpr std::array kSeqStateUpdateConfigurations = [] {
    std::array<SeqStateUpdateConfig, 3 * kChunkStepHeadK.size()> all{};
    size_t n = 0;
    for (const int head_k : kChunkStepHeadK)
        for (const int teams : {4, 2}) all[n++] = seq_state_update_config(head_k, teams, true);
    for (const int head_k : kChunkStepHeadK) all[n++] = seq_state_update_config(head_k, 4, false);
    return all;
}();

inline std::string explain_seq_state_update(const ChunkStepProblem& problem, const jit::DeviceTraits& device) {
    const SeqStateUpdateConfig config = seq_state_update_config(problem, device);
    return fmt::format("{}{} value dimensions a block give {} blocks for {} multiprocessors",
                       problem.aligned ? "" : "rows do not start on 16 bytes: element-wise loads; ", config.rows_per_block(),
                       problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block()),
                       device.multiprocessors);
}

struct SeqStateUpdate {
    GDN_KERNEL(SeqStateUpdate, gdn, seq_state_update, SeqStateUpdateConfig, ChunkArgs,
               "the state before every chunk and after the last; v' in place of u", .uses_cutlass = true);

    static constexpr const char* summary = "the state before every chunk and after the last; v' in place of u";

    static std::span<const Config> configurations() { return kSeqStateUpdateConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSeqStateUpdateConfigurations, SeqStateUpdateSharedPlan>(config);
    }

    static void run(const ChunkStepProblem& problem, const Args& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0) return;
        const Config config = seq_state_update_config(problem, jit::device_traits(target.ordinal));
        launch<SeqStateUpdate>(config, args,
                               {problem.sequences * problem.heads, ceil_div(problem.dv, config.rows_per_block()), 1}, target,
                               [&](const auto& device) { return explain_seq_state_update(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
