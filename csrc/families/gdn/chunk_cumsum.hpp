// Host side of gdn/chunk_cumsum: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <gdn_cuda/kernels/gdn/chunk_cumsum_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

constexpr ChunkCumsumConfig chunk_cumsum_config(DType io) {
    return {.io = io, .chunk = kChunk, .heads_per_block = 32};
}

struct ChunkCumsum {
    GDN_KERNEL(ChunkCumsum, gdn, chunk_cumsum, ChunkCumsumConfig, ChunkCumsumArgs, "cumulative gates inside each chunk of 64");

    static constexpr std::array kConfigurations = {chunk_cumsum_config(DType::bf16), chunk_cumsum_config(DType::f32)};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }  // statically allocated

    static Blocks blocks(const Config& config, i64 heads, i64 chunks) {
        return {chunks, ceil_div(heads, config.heads_per_block), 1};
    }
    static void run(DType io, const Args& args, i64 chunks, const Target& target) {
        if (chunks == 0 || args.heads == 0) return;
        const Config config = chunk_cumsum_config(io);
        launch<ChunkCumsum>(config, args, blocks(config, args.heads, chunks), target, [&](const auto&) {
            return fmt::format("{} chunks of {} tokens, {} heads a block", chunks, config.chunk, config.heads_per_block);
        });
    }
};

}  // namespace gdn_cuda::gdn
