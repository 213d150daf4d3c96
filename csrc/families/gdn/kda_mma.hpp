// Host side of gdn/kda_mma: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/kda_mma/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "../chunked/problem.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// A warp makes the operands of 32 channels and owns 16 rows: eight warps where either needs more than four have.
constexpr KdaMmaConfig kda_mma_config(int head_k, bool wide, DType io, DType gate) {
    return {.head_k = head_k, .warps = wide || head_k > 4 * kKdaMmaWarpChannels ? 8 : 4, .io = io, .gate = gate};
}
constexpr KdaMmaConfig kda_mma_config(const ChunkedProblem& problem, DType gate) {
    const int head_k = *std::ranges::lower_bound(kExactHeadK, problem.dk);
    return kda_mma_config(head_k, problem.dv > 4 * kMmaWarpRows, problem.io, gate);
}

inline std::string explain_kda_mma(const ChunkedProblem& problem, const KdaMmaConfig& config, const jit::DeviceTraits& device) {
    return fmt::format("dk {} in the code for {}; {} blocks of {} value rows for {} multiprocessors", problem.dk, config.head_k,
                       problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block()),
                       config.rows_per_block(), device.multiprocessors);
}

inline constexpr std::array kKdaMmaConfigurations = [] {
    constexpr int kBothWidths = 3;  // key dimensions up to 128
    std::array<KdaMmaConfig, 4 * (kExactHeadK.size() + kBothWidths)> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType gate : {io, DType::f32})
            for (const int head_k : kExactHeadK)
                for (const bool wide : {true, false})
                    if (wide || kda_mma_config(head_k, false, io, gate).warps == 4)
                        all[n++] = kda_mma_config(head_k, wide, io, gate);
    return all;
}();

struct KdaMma {
    GDN_KERNEL(KdaMma, gdn, kda_mma, KdaMmaConfig, KdaMmaArgs, "Kimi Delta Attention by chunks on any tensor cores",
               .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kKdaMmaConfigurations, KdaMmaPlan>(config); }

    static void run(const ChunkedProblem& problem, const GdnCall& call, const Target& target) {
        if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
        const Config config = kda_mma_config(problem, call.gate.values.type);
        const i64 tiles = ceil_div(problem.dv, config.rows_per_block());
        launch<KdaMma>(config, {.call = call, .state = problem.state}, {tiles, problem.heads, problem.sequences}, target,
                       [&](const auto& device) { return explain_kda_mma(problem, config, device); });
    }
};

}  // namespace gdn_cuda::gdn
