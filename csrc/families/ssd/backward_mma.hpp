// ssd/backward_mma on the host: its configurations, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/ssd/backward_mma/plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::ssd {

inline constexpr auto kSsdBackwardMmaConfigurations = [] {
    std::array<SsdBackwardMmaConfig, 6> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int states : {64, 128, 256}) all[count++] = {.io = io, .states = states};
    return all;
}();

struct BackwardMma {
    GDN_KERNEL(BackwardMma, ssd, backward_mma, SsdBackwardMmaConfig, SsdBackwardMmaArgs,
               "gradients of Mamba-2's scan on any tensor cores: a chunk of a group's heads a block", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSsdBackwardMmaConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(SsdBackwardMmaPlan); }

    static Config choose(DType io, int64_t states) {
        return {.io = io, .states = states <= 64 ? 64 : states <= 128 ? 128 : 256};
    }
    static void run(const Config& config, const Args& args, const Target& target) {
        if (args.slots == 0 || args.heads == 0) return;
        launch<BackwardMma>(config, args, {args.slots, args.groups, 1}, target,
                            [&](const auto&) { return fmt::format("{} chunks of {} groups", args.slots, args.groups); });
    }
};

}  // namespace gdn_cuda::ssd
