// ssd/prefill_mma on the host: its configurations, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/prefill_mma/plan.cuh>

#include "prefill.hpp"

namespace gdn_cuda::ssd {

// Row tiles as in ssd/prefill. More than 128 states leave no shared memory for a second chunk of B and C.
inline constexpr int kMmaMostTwoStageStates = 128;
constexpr SsdMmaConfig ssd_mma_config(DType io, int64_t states, bool gated, int stages) {
    const SsdConfig config = ssd_config(io, states, gated);
    return {.io = io, .states = config.states, .row_tiles = config.row_tiles, .stages = stages, .gated = gated};
}

inline constexpr auto kSsdMmaConfigurations = [] {
    std::array<SsdMmaConfig, 16> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128, 256})
            for (const bool gated : {false, true})
                for (const int stages : {1, 2})
                    if (states == 128 || stages == (states < kMmaMostTwoStageStates ? 2 : 1))
                        all[count++] = ssd_mma_config(io, states, gated, stages);
    return all;
}();

struct PrefillMma {
    GDN_KERNEL(PrefillMma, ssd, prefill_mma, SsdMmaConfig, SsdMmaArgs,
               "Mamba-2's scan on any tensor cores: 128 channels of a group's heads a block", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdMmaConfigurations, SsdMmaPlan>(config); }

    // Two stages where a block may have as much shared memory.
    static Config choose(DType io, int64_t states, bool gated, const jit::DeviceTraits& device) {
        if (states > kMmaMostTwoStageStates) return ssd_mma_config(io, states, gated, 1);
        const Config two = ssd_mma_config(io, states, gated, 2);
        return shared_bytes(two) <= device.shared_bytes_per_block ? two : ssd_mma_config(io, states, gated, 1);
    }
    static i64 blocks_of_sequence(const Config& config, const SsdArgs& scan) {
        return blocks_of_group_tiles(config.row_tiles, scan);
    }
    static void run(const Config& config, const Args& args, const Target& target) {
        const SsdArgs& scan = args.scan;
        const i64 blocks = blocks_of_sequence(config, scan);
        if (blocks == 0 || scan.sequences == 0) return;
        launch<PrefillMma>(config, args, {blocks, scan.sequences, scan.segments.count}, target, [&](const auto& device) {
            return fmt::format(
                "up to {} row tiles of a group's heads a block; {}; at most {} segments a sequence", config.row_tiles,
                config.stages == 2
                    ? "two chunks of B and C in shared memory"
                    : fmt::format("one chunk of B and C in {} KB of shared memory", device.shared_bytes_per_block >> 10),
                scan.segments.count);
        });
    }
};

}  // namespace gdn_cuda::ssd
