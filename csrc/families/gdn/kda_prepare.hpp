// Host side of gdn/kda_prepare: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaPrepareConfigurations = {
    KdaPrepareConfig{.io = DType::bf16, .gate = DType::bf16}, KdaPrepareConfig{.io = DType::bf16, .gate = DType::f32},
    KdaPrepareConfig{.io = DType::f16, .gate = DType::f16}, KdaPrepareConfig{.io = DType::f16, .gate = DType::f32}};

struct KdaPrepare {
    GDN_KERNEL(KdaPrepare, gdn, kda_prepare, KdaPrepareConfig, KdaPrepareArgs,
               "Kimi Delta Attention: what each chunk does to any state", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true);

    static constexpr int kMostAlongY = 1 << 15;  // records

    static std::span<const Config> configurations() { return kKdaPrepareConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(KdaPreparePlan); }

    static void run(DType io, const Args& args, const Target& target) {
        if (args.per_head == 0 || args.call.heads == 0) return;
        const i64 along_y = std::min(args.per_head, kMostAlongY);
        launch<KdaPrepare>({.io = io, .gate = args.call.gate.values.type}, args,
                           {args.call.heads, along_y, ceil_div(args.per_head, along_y)}, target, [&](const auto&) {
                               return fmt::format("{} chunks of {} heads, a block each", args.per_head, args.call.heads);
                           });
    }
};

}  // namespace gdn_cuda::gdn
