// scan/selective_backward_sums on the host: its Spec.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/selective_backward_sums_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct SelectiveBackwardSums {
    GDN_KERNEL(SelectiveBackwardSums, scan, selective_backward_sums, SelectiveBackwardSumsConfig, SelectiveBackwardSumsArgs,
               "partial sums of scan/selective_backward over blocks and sequences");

    static constexpr std::array kConfigurations = {SelectiveBackwardSumsConfig{.threads = 128}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }

    // Blocks for the largest gradient; beyond kMost, a thread computes several sums.
    static i64 blocks(const Args& args) {
        constexpr i64 kMost = 1 << 16;
        i64 most = 0;
        for (int i = 0; i < args.count; ++i) most = std::max(most, args.each[i].sums());
        return std::min(ceil_div(most, kConfigurations[0].threads), kMost);
    }
    static void add(Args& args, const PartialSums& sums) {
        if (sums.sums() > 0) args.each[args.count++] = sums;
    }
    static void run(const Args& args, const Target& target) {
        if (args.count == 0) return;
        launch<SelectiveBackwardSums>(kConfigurations[0], args, {blocks(args), args.count, 1}, target,
                                      [&](const auto&) { return fmt::format("{} gradients, one thread a sum", args.count); });
    }
};

}  // namespace gdn_cuda::scan
