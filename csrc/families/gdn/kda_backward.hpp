// Host side of Kimi Delta Attention's backward: gdn/kda_backward_prepare, gdn/kda_backward_states in both directions, and
// gdn/kda_backward_gradients.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/kda_backward/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

constexpr KdaBackwardConfig kda_backward_config(int dk, DType io) {
    return {.head_k = dk <= 64 ? 64 : dk <= 128 ? 128 : 256, .io = io};
}
inline constexpr std::array kKdaBackwardConfigurations = [] {
    std::array<KdaBackwardConfig, 6> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int dk : {64, 128, 256}) all[n++] = kda_backward_config(dk, io);
    return all;
}();
inline constexpr std::array kKdaBackwardStatesConfigurations = [] {
    std::array<KdaBackwardStatesConfig, 2 * kKdaBackwardConfigurations.size()> all{};
    size_t n = 0;
    for (const KdaBackwardConfig& each : kKdaBackwardConfigurations)
        for (const Direction direction : {Direction::backward, Direction::forward})
            all[n++] = {.head_k = each.head_k, .io = each.io, .direction = direction};
    return all;
}();

struct KdaBackwardPrepare {
    GDN_KERNEL(KdaBackwardPrepare, gdn, kda_backward_prepare, KdaBackwardConfig, KdaBackwardArgs,
               "Kimi Delta Attention, backward: what each chunk does to any state", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, i64 heads, DType io, const Target& target) {
        if (args.to.chunks == 0 || heads == 0) return;
        launch<KdaBackwardPrepare>(
            kda_backward_config(args.call.dk, io), args, {args.to.chunks, heads, 1}, target,
            [&](const auto&) { return fmt::format("{} chunks of {} tokens, {} heads", args.to.chunks, kKdaTokens, heads); });
    }
};

struct KdaBackwardStates {
    GDN_KERNEL(KdaBackwardStates, gdn, kda_backward_states, KdaBackwardStatesConfig, KdaBackwardStatesArgs,
               "Kimi Delta Attention, backward: states, or their gradients, of every chunk", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaBackwardStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kKdaBackwardStatesConfigurations, KdaChainPlan>(config); }

    static void run(Direction direction, const Args& args, i64 heads, DType io, const Target& target) {
        if (args.sequences == 0 || heads == 0 || args.dv == 0) return;
        const Config config{.head_k = kda_backward_config(args.dk, io).head_k, .io = io, .direction = direction};
        const bool forward = direction == Direction::forward, summaries = args.segments.summaries;
        const i64 tiles = ceil_div(args.dv, config.rows_per_block()) +
                          (summaries && forward ? ceil_div(args.dk, config.rows_per_block()) : 0),
                  blocks = tiles * args.segments.count;
        launch<KdaBackwardStates>(config, args, {blocks, heads, args.sequences}, target, [&](const auto& device) {
            return fmt::format("{}{}{}; {} blocks of {} rows for {} multiprocessors",
                               forward ? "states" : "gradients of states",
                               args.segments.count > 1 ? fmt::format(", {} segments", args.segments.count) : "",
                               summaries ? ", what each does to any" : "", blocks * heads * args.sequences,
                               config.rows_per_block(), device.multiprocessors);
        });
    }
};

struct KdaBackwardGradients {
    GDN_KERNEL(KdaBackwardGradients, gdn, kda_backward_gradients, KdaBackwardConfig, KdaBackwardGradientsArgs,
               "Kimi Delta Attention, backward: gradients of queries, keys, betas and gates", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kKdaBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kKdaBackwardConfigurations, Plan>(config); }

    static void run(const Args& args, i64 key_heads, DType io, const Target& target) {
        if (args.from.chunks == 0 || key_heads == 0 || args.call.dk == 0) return;
        launch<KdaBackwardGradients>(
            kda_backward_config(args.call.dk, io), args, {args.from.chunks, key_heads, 1}, target,
            [&](const auto&) { return fmt::format("{} value heads a key head in turn", args.call.heads_per_key); });
    }

  private:
    template <KdaBackwardConfig kConfig>
    using Plan = KdaBackwardGradientsPlan<kConfig.head_k>;
};

}  // namespace gdn_cuda::gdn
