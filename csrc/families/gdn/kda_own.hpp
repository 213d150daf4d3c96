// Host side of gdn/kda_own: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaOwnConfigurations = {KdaOwnConfig{.io = DType::bf16}, KdaOwnConfig{.io = DType::f16}};

struct KdaOwn {
    GDN_KERNEL(KdaOwn, gdn, kda_own, KdaOwnConfig, KdaOwnArgs, "Kimi Delta Attention: states and outputs from prepared chunks",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaOwnConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kKdaOwnConfigurations, Plan>(config); }

    static void run(DType io, const Args& args, const Target& target) {
        const GdnCall& call = args.chunked.call;
        const i64 blocks = std::min<i64>(call.sequences, args.window.count) * call.heads * args.row_tiles;
        if (blocks == 0) return;
        launch<KdaOwn>({.io = io}, args, {blocks, 1, 1}, target,
                       [&](const auto&) { return fmt::format("{} blocks of {} value rows", blocks, kValueRows); });
    }

  private:
    template <KdaOwnConfig kConfig>
    using Plan = KdaOwnerPlan<kConfig.block()>;
};

}  // namespace gdn_cuda::gdn
