// Host side of gdn/backward_chain: configuration, tensor maps and launch.
#pragma once

#include <array>
#include <cstdlib>
#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>
#include <string>

#include "../../jit/tensor_map.hpp"
#include "../../launch/spec.hpp"
#include "../chunked/schedule.hpp"
#include "backward_gradients.hpp"

namespace gdn_cuda::gdn {

constexpr ChunkedConfig backward_chain_config(int dk, DType io, Direction direction) {
    ChunkedConfig config = chunked_config(dk, 1, io);
    config.direction = direction;
    config.trains = true;
    return config;
}

inline constexpr std::array kBackwardChainConfigurations = [] {
    std::array<ChunkedConfig, 12> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int dk : {128, 96, 64})
            for (const Direction direction : {Direction::backward, Direction::forward})
                all[n++] = backward_chain_config(dk, io, direction);
    return all;
}();

struct BackwardChain {
    GDN_KERNEL(BackwardChain, gdn, backward_chain, ChunkedConfig, BackwardChainArgs,
               "states, or their gradients, of every chunk for training on Hopper's tensor cores", .min_capability = 90,
               .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kBackwardChainConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kBackwardChainConfigurations, ChunkedPlan>(config); }

    // The rows of a call that are loaded or stored by tokens, as tensors.
    static jit::TiledTensor tiled(const GdnCall& call, const Rows& rows, i64 heads, i64 d) {
        return {rows, call.cu_seqlens.data != nullptr ? 1 : call.sequences, call.tokens, heads, d};
    }
    static bool takes(const GdnCall& call) {
        const i64 key_heads = call.heads / call.heads_per_key;
        const auto near = [](const Scalars& scalars) { return std::abs(scalars.token) <= kLongestScalarStride; };
        return call.tokens > 0 && jit::can_tile(tiled(call, call.query, key_heads, call.dk)) &&
               jit::can_tile(tiled(call, call.key, key_heads, call.dk)) &&
               jit::can_tile(tiled(call, call.value, call.heads, call.dv)) && near(call.gate) && near(call.beta);
    }

    // The chain forward in time is launched after the one backward. It starts before that has ended where both fit on half of
    // the multiprocessors: with 64 blocks each, two chains at a time took longer than one after the other.
    static void run(Direction direction, const GdnCall& call, const BackwardHandover& to, DType io, const Target& target) {
        if (call.sequences == 0 || call.heads == 0) return;
        const bool backward = direction == Direction::backward;
        const i64 key_heads = call.heads / call.heads_per_key;
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, io, kChunk, target.ordinal); };
        Args args{};
        args.key = map(tiled(call, call.key, key_heads, call.dk));
        args.query = backward ? map(tiled(call, call.query, key_heads, call.dk)) : args.key;  // forward needs none
        args.value = map(tiled(call, call.value, call.heads, call.dv));
        args.output = map(backward ? tiled(call, call.output, call.heads, call.dv) : errors_of(to, call.heads, call.dv));
        args.call = call;
        if (!backward) args.call.outputs = 0;
        args.state = DType::f32;
        args.segments = 1;
        args.takes = LaunchTakes::every_call;
        args.to = to;
        args.states = map(states_of(to, backward ? to.state_gradients : to.states, call.heads, call.dk, call.dv));
        const Config config = backward_chain_config(call.dk, io, direction);
        const i64 row_tiles = ceil_div(call.dv, config.rows_per_block()), blocks = row_tiles * call.heads * call.sequences;
        const bool starts_early = !backward && 4 * blocks <= jit::device_traits(target.ordinal).multiprocessors;
        launch<BackwardChain>(
            config, args, {row_tiles, call.heads, call.sequences}, target,
            [&](const auto& on) {
                return fmt::format("{}; {} blocks of {} value rows for {} multiprocessors",
                                   backward ? "gradients of states" : "states", blocks, config.rows_per_block(),
                                   on.multiprocessors);
            },
            starts_early);
    }
};

}  // namespace gdn_cuda::gdn
