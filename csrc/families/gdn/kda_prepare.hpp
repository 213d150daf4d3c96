// Host side of gdn/kda_prepare: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>

#include "../../jit/tensor_map.hpp"
#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaPrepareConfigurations = [] {
    std::array<KdaPrepareConfig, 8> all{};
    size_t n = 0;
    for (const bool trains : {false, true})
        for (const DType io : {DType::bf16, DType::f16})
            for (const DType gate : {io, DType::f32}) all[n++] = {.io = io, .gate = gate, .trains = trains};
    return all;
}();

struct KdaPrepare {
    GDN_KERNEL(KdaPrepare, gdn, kda_prepare, KdaPrepareConfig, KdaPrepareArgs,
               "Kimi Delta Attention: what each chunk does to any state", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true, .few_registers = true);

    static constexpr int kMostAlongY = 1 << 15;  // records

    static std::span<const Config> configurations() { return kKdaPrepareConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(KdaPreparePlan); }

    static Config config_of(DType io, const GdnCall& call, bool trains) {
        return {.io = io, .gate = call.gate.values.type, .trains = trains};
    }
    static void run(DType io, const Args& args, const Target& target) {
        if (args.per_head == 0 || args.call.heads == 0) return;
        const i64 along_y = std::min(args.per_head, kMostAlongY);
        launch<KdaPrepare>(config_of(io, args.call, args.to.prepared != nullptr), args,
                           {args.call.heads, along_y, ceil_div(args.per_head, along_y)}, target, [&](const auto&) {
                               return fmt::format("{} chunks of {} heads, a block each", args.per_head, args.call.heads);
                           });
    }
    // For the backward.
    static void run(const GdnCall& call, const BackwardHandover& to, DType io, const Target& target) {
        const auto map = [&](const Rows& rows) {
            const i64 batches = call.cu_seqlens.data != nullptr ? 1 : call.sequences;
            return jit::tile_map({rows, batches, call.tokens, call.heads / call.heads_per_key, call.dk}, io, kChunk,
                                 target.ordinal);
        };
        if (to.chunks == 0 || call.heads == 0) return;
        run(io,
            {.query = map(call.query),
             .key = map(call.key),
             .call = {call, {}},
             .per_head = static_cast<int>(to.chunks),
             .to = to},
            target);
    }
};

}  // namespace gdn_cuda::gdn
