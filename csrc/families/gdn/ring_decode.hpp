// gdn/ring_decode on the host: its configuration, how many rows a block has, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/ring_decode/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

struct RingDecodeProblem {
    i64 sequences;
    int tokens;  // the longest sequence's
    int entries;
    int heads, key_heads, dk, dv;
    DType io, state;
};

inline constexpr int kFewRingTokens = 4, kMostRingTokens = 16, kFewRingEntries = 16, kMostRingEntries = 32;
// Blocks have fewer rows where there would be fewer blocks than this.
inline constexpr i64 kRingBlocksPerMultiprocessor = 2;
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

inline Blocks ring_decode_blocks(const RingDecodeProblem& problem, int rows) {
    // Heads that share a key are adjacent.
    return {ceil_div(problem.dv, rows) * (problem.heads / problem.key_heads), problem.key_heads, problem.sequences};
}
inline i64 ring_decode_blocks_in_all(const RingDecodeProblem& problem, int rows) {
    const Blocks blocks = ring_decode_blocks(problem, rows);
    return blocks[0] * blocks[1] * blocks[2];
}
inline int ring_decode_rows(const RingDecodeProblem& problem, const jit::DeviceTraits& device) {
    constexpr int kStep = RingDecodeConfig::kTileRows;
    int rows = std::min(ring_decode_config(problem).most_rows(), static_cast<int>(ceil_div(problem.dv, kStep)) * kStep);
    while (rows > kStep && ring_decode_blocks_in_all(problem, rows) < kRingBlocksPerMultiprocessor * device.multiprocessors)
        rows = std::max(kStep, rows / 2 / kStep * kStep);
    return rows;
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
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        args.block_rows = ring_decode_rows(problem, device);
        args.row_blocks = static_cast<int>(ceil_div(problem.dv, args.block_rows));
        launch<RingDecodeKernel>(ring_decode_config(problem), args, ring_decode_blocks(problem, args.block_rows), target,
                                 [&](const auto& of) {
                                     return fmt::format("{} blocks of {} rows for {} multiprocessors; a ring of {} tokens",
                                                        ring_decode_blocks_in_all(problem, args.block_rows), args.block_rows,
                                                        of.multiprocessors, args.entries);
                                 });
    }
};

}  // namespace gdn_cuda::gdn
