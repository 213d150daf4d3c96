// Host side of gdn/kda_order: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/kda/order_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaOrderConfigurations = {KdaOrderConfig{.warps = 8}};

struct KdaOrder {
    GDN_KERNEL(KdaOrder, gdn, kda_order, KdaOrderConfig, KdaOrderArgs,
               "Kimi Delta Attention: the order in which windows take the chunks of packed sequences");

    static std::span<const Config> configurations() { return kKdaOrderConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        if (args.count == 0 || args.sequences == 0) return;
        const Config config = kKdaOrderConfigurations.front();
        launch<KdaOrder>(config, args, {ceil_div(args.count, config.threads()), 1, 1}, target, [&](const auto&) {
            return fmt::format("at most {} chunks of {} sequences", args.count, args.sequences);
        });
    }
};

}  // namespace gdn_cuda::gdn
