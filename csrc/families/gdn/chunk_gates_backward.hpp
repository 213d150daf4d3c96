// Host side of gdn/chunk_gates_backward: configuration and launch.
#pragma once

#include <algorithm>
#include <bit>
#include <gdn_cuda/kernels/gdn/chunk_gates_backward_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kChunkGatesBackwardConfigurations = {ChunkGatesBackwardConfig{.warps = 8}};

struct ChunkGatesBackward {
    GDN_KERNEL(ChunkGatesBackward, gdn, chunk_gates_backward, ChunkGatesBackwardConfig, ChunkGatesBackwardArgs,
               "gradients of gates: raw ones, decays, logits");

    static std::span<const Config> configurations() { return kChunkGatesBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    // Fills in how tokens and heads are spread over threads; returns the number of blocks whose sums are added.
    static i64 spread(Args& args) {
        constexpr i64 kTokensOfBlock = 32;
        constexpr int kMostLanes = kChunkGatesBackwardConfigurations.front().threads() / 2;  // two rows of threads add sums
        args.lanes = std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(args.heads, 1)))), kMostLanes);
        args.tokens_of_block = kTokensOfBlock;
        return ceil_div(args.sequences * args.tokens, kTokensOfBlock);
    }
    static void run(const Args& args, i64 blocks, const Target& target) {
        if (blocks == 0 || args.heads == 0) return;
        launch<ChunkGatesBackward>(kChunkGatesBackwardConfigurations.front(), args,
                                   {blocks, ceil_div(args.heads, args.lanes), 1}, target,
                                   [](const auto&) { return std::string("gates have other forms or dtypes"); });
    }
};

}  // namespace gdn_cuda::gdn
