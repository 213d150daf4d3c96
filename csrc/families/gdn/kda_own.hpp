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
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kKdaOwnConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kKdaOwnConfigurations, Plan>(config); }

    static void run(DType io, const Args& args, const Target& target) {
        const GdnCall& call = args.chunked.call;
        const KdaSegments& segments = args.segments;
        const i64 heads =
                      (segments.chunks > 0 ? segments.slots : std::min(call.sequences, args.window.count)) * i64{call.heads},
                  transition_tiles = segments.chunks > 0 && !segments.follow ? ceil_div(i64{call.dk}, i64{kValueRows}) : 0;
        Args given = args;
        given.work_tiles = static_cast<int>(heads * (args.row_tiles + transition_tiles));
        if (given.work_tiles == 0) return;
        const int blocks = std::min(given.work_tiles, jit::device_traits(target.ordinal).multiprocessors);
        launch<KdaOwn>({.io = io}, given, {blocks, 1, 1}, target, [&](const auto&) {
            return fmt::format("{} work tiles of {} rows, which {} blocks take{}", given.work_tiles, kValueRows, blocks,
                               part(segments));
        });
    }

  private:
    static const char* part(const KdaSegments& segments) {
        if (segments.chunks == 0) return "";
        return segments.follow ? ", segments after the first" : ", the first segment and what the others do to a state";
    }
    template <KdaOwnConfig kConfig>
    using Plan = KdaOwnerPlan<kConfig.block()>;
};

}  // namespace gdn_cuda::gdn
