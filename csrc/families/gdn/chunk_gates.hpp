// Host side of gdn/chunk_gates: configuration and launch.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_gates_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kChunkGatesConfigurations = {ChunkGatesConfig{.warps = 8}};

struct ChunkGates {
    using Config = ChunkGatesConfig;
    using Args = ChunkGatesArgs;
    static constexpr const char *family = "gdn", *name = "chunk_gates", *config_type = "ChunkGatesConfig",
                                *args_type = "ChunkGatesArgs";
    static constexpr const char* summary = "gates of the chunked form from raw ones, decays, logits or none";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

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
