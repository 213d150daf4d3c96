// Host side of the backward by warp MMAs: gdn/backward_mma_states in both directions, and gdn/backward_mma_gradients.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/backward_mma_gradients/plan.cuh>
#include <gdn_cuda/kernels/gdn/backward_mma_states/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"
#include "prefill_mma.hpp"

namespace gdn_cuda::gdn {

constexpr BackwardStatesConfig backward_states_config(int head_k, bool wide, DType io, Direction direction) {
    const PrefillMmaConfig forward = prefill_mma_config(head_k, wide, io);
    return {.head_k = head_k, .key_stages = forward.key_stages, .warps = forward.warps, .io = io, .direction = direction};
}

inline constexpr std::array kBackwardStatesConfigurations = [] {
    std::array<BackwardStatesConfig, 2 * kPrefillMmaConfigurations.size()> all{};
    size_t n = 0;
    for (const PrefillMmaConfig& forward : kPrefillMmaConfigurations)
        for (const Direction direction : {Direction::backward, Direction::forward})
            all[n++] = backward_states_config(forward.head_k, forward.warps == 8, forward.io, direction);
    return all;
}();

struct BackwardMmaStates {
    GDN_KERNEL(BackwardMmaStates, gdn, backward_mma_states, BackwardStatesConfig, BackwardStatesArgs,
               "states, or their gradients, of every chunk for training on any tensor cores", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kBackwardStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kBackwardStatesConfigurations, BackwardStatesPlan>(config);
    }

    static Config config_of(Direction direction, const GdnCall& call, DType io) {
        const PrefillMmaConfig forward = prefill_mma_config({.sequences = call.sequences,
                                                             .tokens = call.tokens,
                                                             .heads = call.heads,
                                                             .dk = call.dk,
                                                             .dv = call.dv,
                                                             .io = io,
                                                             .state = DType::f32});
        return backward_states_config(forward.head_k, forward.warps == 8, io, direction);
    }
    static void run(Direction direction, const Args& args, DType io, const Target& target) {
        const GdnCall& call = args.call;
        if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
        const Config config = config_of(direction, call, io);
        const i64 tiles = ceil_div(call.dv, config.rows_per_block());
        launch<BackwardMmaStates>(config, args, {tiles, call.heads, call.sequences}, target, [&](const auto& device) {
            return fmt::format("{}; dk {} in tiles of {}; {} blocks of {} value rows for {} multiprocessors",
                               direction == Direction::forward ? "states" : "gradients of states", call.dk, config.head_k,
                               tiles * call.heads * call.sequences, config.rows_per_block(), device.multiprocessors);
        });
    }
};

inline constexpr std::array kBackwardGradientsConfigurations = [] {
    std::array<BackwardGradientsConfig, 8> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int blocks : {1, 2, 3, 4}) all[n++] = {.key_blocks = blocks, .io = io};
    return all;
}();

struct BackwardMmaGradients {
    GDN_KERNEL(BackwardMmaGradients, gdn, backward_mma_gradients, BackwardGradientsConfig, BackwardGradientsArgs,
               "gradients of queries, keys, betas and gates on any tensor cores", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kBackwardGradientsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(BackwardGradientsPlan); }

    static Config config_of(int dk, DType io) { return {.key_blocks = static_cast<int>(ceil_div(dk, kChunk)), .io = io}; }

    static void run(const Args& args, DType io, const Target& target) {
        if (args.from.chunks == 0 || args.heads == 0 || args.dk == 0) return;
        const Config config = config_of(args.dk, io);
        launch<BackwardMmaGradients>(config, args, {args.from.chunks, args.heads / args.heads_per_key, 1}, target,
                                     [&](const auto&) {
                                         return fmt::format("{} value heads a key head in turn, {} blocks of key columns",
                                                            args.heads_per_key, config.key_blocks);
                                     });
    }
};

}  // namespace gdn_cuda::gdn
