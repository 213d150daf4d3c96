// ssd/prefill on the host: its configurations, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

inline constexpr auto kSsdConfigurations = [] {
    std::array<SsdConfig, 12> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128, 256})
            for (const bool gated : {false, true}) all[count++] = {.io = io, .states = states, .row_tiles = 2, .gated = gated};
    return all;
}();

struct Prefill {
    GDN_KERNEL(Prefill, ssd, prefill, SsdConfig, SsdArgs, "Mamba-2's scan: 128 channels of a group's heads a block",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdConfigurations, SsdPlan>(config); }

    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 blocks = args.groups * ceil_div(i64{args.heads / args.groups} * args.tiles_of_head, config.row_tiles);
        if (blocks == 0 || args.sequences == 0) return;
        launch<Prefill>(config, args, {blocks, args.sequences, 1}, target, [&](const auto&) {
            return fmt::format("up to {} row tiles of a group's heads a block, {} stages", config.row_tiles, config.stages());
        });
    }
};

}  // namespace gdn_cuda::ssd
