// Host side of gdn/kda_fold: configuration and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaFoldConfigurations = {KdaFoldConfig{.columns = kKdaHeadK, .rows = 8}};

struct KdaFold {
    GDN_KERNEL(KdaFold, gdn, kda_fold, KdaFoldConfig, KdaOwnArgs,
               "Kimi Delta Attention: the states between segments of a sequence", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaFoldConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        const GdnCall& call = args.chunked.call;
        const Config& config = kKdaFoldConfigurations.front();
        launch<KdaFold>(config, args, {i64{call.sequences} * call.heads, ceil_div(i64{call.dv}, i64{config.rows}), 1}, target,
                        [&](const auto&) { return fmt::format("{} rows of a sequence and head a block", config.rows); });
    }
};

}  // namespace gdn_cuda::gdn
