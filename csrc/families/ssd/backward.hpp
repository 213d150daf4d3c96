// ssd/backward on the host: its configurations, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/backward_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

inline constexpr std::array<SsdBackwardConfig, 4> kSsdBackwardConfigurations{
    {{DType::bf16, 64}, {DType::bf16, 128}, {DType::f16, 64}, {DType::f16, 128}}};

struct Backward {
    GDN_KERNEL(Backward, ssd, backward, SsdBackwardConfig, SsdBackwardArgs,
               "gradients of Mamba-2's scan: a chunk of a group's heads a block", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSsdBackwardConfigurations, SsdBackwardPlan>(config); }

    static void run(const Config& config, const Args& args, const Target& target) {
        if (args.slots == 0 || args.heads == 0) return;
        launch<Backward>(config, args, {args.slots, args.groups, 1}, target,
                         [&](const auto&) { return fmt::format("{} chunks of {} groups", args.slots, args.groups); });
    }
};

}  // namespace gdn_cuda::ssd
