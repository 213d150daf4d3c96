// ssd/prefill on the host: its configurations, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

inline constexpr auto kSsdConfigurations = [] {
    std::array<SsdConfig, 8> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128})
            for (const bool gated : {false, true}) all[count++] = {.io = io, .states = states, .heads = 2, .gated = gated};
    return all;
}();

struct Prefill {
    GDN_KERNEL(Prefill, ssd, prefill, SsdConfig, SsdArgs, "Mamba-2's scan: two heads of a group a block", .min_capability = 90,
               .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdConfigurations, SsdPlan>(config); }

    static void run(const Config& config, const Args& args, const Target& target) {
        const i64 blocks = args.groups * ceil_div(args.heads / args.groups, config.heads);
        if (blocks == 0 || args.sequences == 0) return;
        launch<Prefill>(config, args, {blocks, args.sequences, 1}, target, [&](const auto&) {
            return fmt::format("up to {} heads of a group a block, {} stages", config.heads, config.stages());
        });
    }
};

}  // namespace gdn_cuda::ssd
