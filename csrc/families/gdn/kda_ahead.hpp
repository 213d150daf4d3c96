// Host side of gdn/kda_ahead: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/kda/ahead_plan.cuh>

#include "../../launch/spec.hpp"
#include "kda_ahead_model.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaAheadConfigurations = {
    KdaAheadConfig{.io = DType::bf16, .gate = DType::bf16}, KdaAheadConfig{.io = DType::bf16, .gate = DType::f32},
    KdaAheadConfig{.io = DType::f16, .gate = DType::f16}, KdaAheadConfig{.io = DType::f16, .gate = DType::f32}};

struct KdaAhead {
    GDN_KERNEL(KdaAhead, gdn, kda_ahead, KdaAheadConfig, KdaAheadArgs,
               "Kimi Delta Attention: chunks prepared beside states and outputs", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true, .few_registers = true, .starts_early = true);

    static std::span<const Config> configurations() { return kKdaAheadConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return std::max<int>(plan_bytes<kKdaAheadConfigurations, Owner>(config), kKdaHalves * sizeof(KdaHalfPlan));
    }

    // own.work_tiles: all that the window has.
    static void run(DType io, const Args& args, const KdaAheadSplit& split, const Target& target) {
        if (args.own.work_tiles == 0) return;
        launch<KdaAhead>({.io = io, .gate = args.prepare.call.gate.values.type}, args, {split.preparers + split.owners, 1, 1},
                         target, [&](const auto&) {
                             return fmt::format(
                                 "{} blocks prepare {} records; {} own {} work tiles of {} rows, and prepare too until {} "
                                 "records are taken",
                                 split.preparers, args.records(), split.owners, args.own.work_tiles, kValueRows,
                                 args.first_records);
                         });
    }

  private:
    template <KdaAheadConfig kConfig>
    using Owner = KdaOwnerPlan<kConfig.owner()>;
};

}  // namespace gdn_cuda::gdn
