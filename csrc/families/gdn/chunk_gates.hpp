// Host side of gdn/chunk_gates: configuration and launch.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_gates_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kChunkGatesConfigurations = {ChunkGatesConfig{.warps = 8}};

struct ChunkGates {
    GDN_KERNEL(ChunkGates, gdn, chunk_gates, ChunkGatesConfig, ChunkGatesArgs,
               "gates of the chunked form from raw ones, decays, logits or none");

    static std::span<const Config> configurations() { return kChunkGatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        const Config config = kChunkGatesConfigurations.front();
        const i64 numbers = args.sequences * args.tokens * args.heads;
        if (numbers == 0) return;
        launch<ChunkGates>(config, args, {ceil_div(numbers, config.threads()), 1, 1}, target,
                           [](const auto&) { return std::string("gates are not logarithms of decays and betas"); });
    }
};

}  // namespace gdn_cuda::gdn
