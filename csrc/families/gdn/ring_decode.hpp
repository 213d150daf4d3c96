// gdn/ring_decode on the host: its configuration, how many rows a block has, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/ring_decode/plan.cuh>

#include "../common/ring_blocks.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

struct RingDecodeProblem {
    i64 sequences;
    int tokens;  // the longest sequence's
    int entries;
    int heads, key_heads, dk, dv;
    DType io, state;

    static int smallest_block() { return RingDecodeConfig::kTileRows; }
    Blocks blocks(int rows) const {  // heads that share a key are adjacent
        return {ceil_div(dv, rows) * (heads / key_heads), key_heads, sequences};
    }
};

inline constexpr int kFewRingTokens = 4, kFewRingEntries = 16;
constexpr RingDecodeConfig ring_decode_config(int dk, DType io, DType state, int entries, int tokens) {
    return {.head_k = masked_head_k(dk),
            .io = io,
            .state = state,
            .entries = entries <= kFewRingEntries ? kFewRingEntries : kMostRingEntries,
            .tokens = tokens <= 1                ? 1
                      : tokens <= kFewRingTokens ? kFewRingTokens
                                                 : kMostRingTokens};
}
constexpr RingDecodeConfig ring_decode_config(const RingDecodeProblem& problem) {
    return ring_decode_config(problem.dk, problem.io, problem.state, problem.entries, problem.tokens);
}

inline constexpr std::array kRingDecodeConfigurations = [] {
    std::array<RingDecodeConfig, kMaskedHeadK.size() * 2 * 4 * 2 * 3> all{};
    size_t n = 0;
    for (const int dk : kMaskedHeadK)
        for (const DType io : {DType::bf16, DType::f16})
            for (const DType state : {DType::f32, DType::bf16, DType::f16, DType::i8})
                for (const int entries : {kFewRingEntries, kMostRingEntries})
                    for (const int tokens : {1, kFewRingTokens, kMostRingTokens})
                        all[n++] = ring_decode_config(dk, io, state, entries, tokens);
    return all;
}();

struct RingDecodeKernel {
    GDN_KERNEL(RingDecodeKernel, gdn, ring_decode, RingDecodeConfig, RingDecodeArgs,
               "tokens from a state that lacks the last ones, which a ring holds", .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kRingDecodeConfigurations; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kRingDecodeConfigurations, RingDecodeSharedPlan>(config);
    }

    static void run(const RingDecodeProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.heads == 0 || problem.dv == 0) return;
        const RingDecodeConfig config = ring_decode_config(problem);
        constexpr int kStep = RingDecodeConfig::kTileRows;
        const int all = static_cast<int>(ceil_div(problem.dv, kStep)) * kStep;
        args.block_rows = ring_rows(problem, std::min(config.most_rows(), all), jit::device_traits(target.ordinal));
        args.row_blocks = static_cast<int>(ceil_div(problem.dv, args.block_rows));
        launch_ring<RingDecodeKernel>(config, problem, args, target);
    }
};

}  // namespace gdn_cuda::gdn
