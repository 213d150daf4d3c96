// ssd/prefill_mma on the host: its configurations, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/prefill_mma/plan.cuh>

#include "prefill.hpp"

namespace gdn_cuda::ssd {

// Row tiles as in ssd/prefill. Two chunks of B and C fit everywhere with 64 states, and with 128 without z; with 128 and z on
// some GPUs; with 256 nowhere.
constexpr SsdMmaConfig ssd_mma_config(DType io, int64_t states, bool gated, int stages) {
    const SsdConfig config = ssd_config(io, states, true, gated);
    return {.io = io, .states = config.states, .row_tiles = config.row_tiles, .stages = stages, .gated = gated};
}
constexpr int most_mma_stages(int64_t states) {
    return states <= 128 ? 2 : 1;
}
constexpr int fewest_mma_stages(int64_t states, bool gated) {
    return gated && states > 64 ? 1 : most_mma_stages(states);
}

inline constexpr auto kSsdMmaConfigurations = [] {
    std::array<SsdMmaConfig, 14> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128, 256})
            for (const bool gated : {false, true})
                for (int stages = fewest_mma_stages(states, gated); stages <= most_mma_stages(states); ++stages)
                    all[count++] = ssd_mma_config(io, states, gated, stages);
    return all;
}();

struct PrefillMma {
    GDN_KERNEL(PrefillMma, ssd, prefill_mma, SsdMmaConfig, SsdMmaArgs,
               "Mamba-2's scan on any tensor cores: 128 channels of a group's heads a block", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdMmaConfigurations, SsdMmaPlan>(config); }

    static Config choose(DType io, int64_t states, bool gated, const jit::DeviceTraits& device) {
        const Config most = ssd_mma_config(io, states, gated, most_mma_stages(states));
        return shared_bytes(most) <= device.shared_bytes_per_block
                   ? most
                   : ssd_mma_config(io, states, gated, fewest_mma_stages(states, gated));
    }
    static i64 blocks_of_sequence(const Config& config, const SsdArgs& scan) {
        return blocks_of_group_tiles(config.row_tiles, scan);
    }
    static void run(const Config& config, const Args& args, const Target& target) {
        const SsdArgs& scan = args.scan;
        const i64 blocks = blocks_of_sequence(config, scan);
        if (blocks == 0 || scan.sequences == 0) return;
        const i64 passes = i64{scan.pass_count} * scan.sequences;
        launch<PrefillMma>(config, args, {blocks, passes, scan.segments.count}, target, [&](const auto& device) {
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
