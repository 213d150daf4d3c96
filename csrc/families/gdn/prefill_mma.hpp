// Host side of gdn/prefill_mma: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/prefill_mma/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "../chunked/problem.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// gdn/prefill_mma: prefill on any GPU from sm_80 on. A block of 128 value rows computes T and P once where two of 64 compute
// them twice; 256-wide keys leave no room for that, and keys above 128 none for a second key stage.
inline constexpr int kPrefillMmaLongestTwoStages = 128, kPrefillMmaLongestWide = 192;
constexpr PrefillMmaConfig prefill_mma_config(int head_k, bool wide, DType io) {
    return {.head_k = head_k,
            .key_stages = head_k <= kPrefillMmaLongestTwoStages ? 2 : 1,
            .warps = wide && head_k <= kPrefillMmaLongestWide ? 8 : 4,
            .io = io};
}
constexpr PrefillMmaConfig prefill_mma_config(const ChunkedProblem& problem) {
    const PrefillMmaConfig narrow = prefill_mma_config(*std::ranges::lower_bound(kExactHeadK, problem.dk), false, problem.io);
    return problem.dv > narrow.rows_per_block() ? prefill_mma_config(narrow.head_k, true, problem.io) : narrow;
}

inline std::string explain_prefill_mma(const ChunkedProblem& problem, const jit::DeviceTraits& device) {
    const PrefillMmaConfig config = prefill_mma_config(problem);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    return fmt::format("dk {} in tiles of {}: room for {} of keys; {} blocks of {} value rows for {} multiprocessors",
                       problem.dk, config.head_k, config.key_stages == 1 ? "one chunk" : "two chunks", blocks,
                       config.rows_per_block(), device.multiprocessors);
}

inline constexpr std::array kPrefillMmaConfigurations = [] {
    std::array<PrefillMmaConfig, 2 * (2 * kExactHeadK.size() - 1)> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : kExactHeadK)
            for (const bool wide : {true, false})
                if (!wide || head_k <= kPrefillMmaLongestWide) all[n++] = prefill_mma_config(head_k, wide, io);
    return all;
}();

struct PrefillMma {
    GDN_KERNEL(PrefillMma, gdn, prefill_mma, PrefillMmaConfig, PrefillMmaArgs,
               "the chunked form on any tensor cores: prefill on GPUs other than Hopper", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kPrefillMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kPrefillMmaConfigurations, MmaPlan>(config); }

    static void run(const ChunkedProblem& problem, const GdnCall& recurrence, const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const Config config = prefill_mma_config(problem);
        const Args args{.recurrence = recurrence, .state = problem.state};
        const i64 tiles = ceil_div(problem.dv, config.rows_per_block());
        launch<PrefillMma>(config, args, {tiles, problem.heads, problem.sequences}, target,
                           [&](const auto& device) { return explain_prefill_mma(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
