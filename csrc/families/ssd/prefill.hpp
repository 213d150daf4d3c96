// ssd/prefill on the host: its configurations, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

constexpr SsdConfig ssd_config(DType io, int64_t states, bool outputs, bool gated) {
    const int padded = states <= 64 ? 64 : states <= 128 ? 128 : 256;
    // Two row tiles of 256 states leave no registers for z.
    return {.io = io, .states = padded, .row_tiles = gated && padded == 256 ? 1 : 2, .outputs = outputs, .gated = gated};
}

inline constexpr auto kSsdConfigurations = [] {
    std::array<SsdConfig, 18> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128, 256}) {
            all[count++] = ssd_config(io, states, false, false);
            for (const bool gated : {false, true}) all[count++] = ssd_config(io, states, true, gated);
        }
    return all;
}();

// Into how many segments sequences are split, so that all SMs have a block. A segment that others follow takes its
// states twice. Lengths of packed sequences are not known here, and count as equal.
inline int ssd_segments(i64 blocks, i64 sequences, i64 tokens, bool packed, int multiprocessors) {
    constexpr int kMost = 32;
    if (blocks == 0 || sequences == 0) return 1;
    const i64 chunks = ceil_div(packed ? ceil_div(tokens, sequences) : tokens, kChunk);
    return static_cast<int>(
        std::clamp<i64>(std::min(multiprocessors / (blocks * sequences), chunks / kShortestSegment), 1, kMost));
}

// Blocks of a sequence, or of its segment.
inline i64 blocks_of_group_tiles(int row_tiles, const SsdArgs& args) {
    return args.groups * ceil_div(i64{args.heads / args.groups} * args.tiles_of_head, row_tiles);
}

struct Prefill {
    GDN_KERNEL(Prefill, ssd, prefill, SsdConfig, SsdArgs, "Mamba-2's scan: 128 channels of a group's heads a block",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kSsdConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdConfigurations, SsdPlan>(config); }

    static i64 blocks_of_sequence(const Config& config, const Args& args) {
        return blocks_of_group_tiles(config.row_tiles, args);
    }
    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 blocks = blocks_of_sequence(config, args);
        if (blocks == 0 || args.sequences == 0) return;
        launch<Prefill>(
            config, args, {blocks, i64{args.pass_count} * args.sequences, args.segments.count}, target, [&](const auto&) {
                return fmt::format("up to {} row tiles of a group's heads a block, {} stages; at most {} segments a sequence",
                                   config.row_tiles, config.stages(), args.segments.count);
            });
    }
};

}  // namespace gdn_cuda::ssd
