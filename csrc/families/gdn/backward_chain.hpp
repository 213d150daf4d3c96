// Host side of gdn/backward_prepare and gdn/backward_chain: configurations, tensor maps and launches.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <gdn_cuda/kernels/gdn/backward_chain/plan.cuh>
#include <gdn_cuda/kernels/gdn/backward_links_plan.cuh>
#include <limits>
#include <string>

#include "../../jit/tensor_map.hpp"
#include "../../launch/spec.hpp"
#include "../chunked/schedule.hpp"
#include "backward_gradients.hpp"

namespace gdn_cuda::gdn {

constexpr ChunkedConfig backward_prepare_config(int dk, DType io) {
    ChunkedConfig config = chunked_config(dk, 1, io);
    config.trains = true;
    return config;
}

inline constexpr std::array kBackwardPrepareConfigurations = [] {
    std::array<ChunkedConfig, 6> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int dk : {128, 96, 64}) all[n++] = backward_prepare_config(dk, io);
    return all;
}();
inline constexpr std::array kBackwardChainConfigurations = [] {
    std::array<BackwardChainConfig, 16> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const Direction direction : {Direction::backward, Direction::forward}) {
            for (const int head_k : {128, 96, 64}) all[n++] = {.head_k = head_k, .direction = direction, .io = io};
            all[n++] = {.head_k = kKdaHeadK, .direction = direction, .io = io, .channels = true};
        }
    return all;
}();

// The rows of a call that are loaded or stored by tokens, as tensors.
inline jit::TiledTensor tiled_tokens(const GdnCall& call, const Rows& rows, i64 heads, i64 d) {
    return {rows, call.cu_seqlens.data != nullptr ? 1 : call.sequences, call.tokens, heads, d};
}
inline void set_call(ChunkedArgs& args, const GdnCall& call) {
    args.call = call;
    args.state = DType::f32;
    args.segments = 1;
    args.takes = LaunchTakes::every_call;
}
// Keys, and queries or keys again.
inline void map_keys(ChunkedArgs& args, const GdnCall& call, bool queries, DType io, const Target& target) {
    const auto map = [&](const Rows& rows) {
        return jit::tile_map(tiled_tokens(call, rows, call.heads / call.heads_per_key, call.dk), io, kChunk, target.ordinal);
    };
    args.key = map(call.key);
    args.query = queries ? map(call.query) : args.key;
}

struct BackwardPrepare {
    GDN_KERNEL(BackwardPrepare, gdn, backward_prepare, ChunkedConfig, BackwardPrepareArgs,
               "what the chains of the backward need of every chunk and does not depend on states, on Hopper's tensor cores",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kBackwardPrepareConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kBackwardPrepareConfigurations, ChunkedPlan>(config); }

    // Blocks of a sequence and head: those with which all end first.
    static int preparers(i64 pairs, i64 chunks, int multiprocessors) {
        constexpr i64 kStart = 4;  // what a block's start takes, in chunks
        const auto waves = [&](i64 blocks) { return ceil_div(pairs * blocks, i64{multiprocessors}); };
        i64 best = 1;
        for (i64 blocks = 2; blocks <= std::min(chunks, ceil_div(i64{2} * multiprocessors, pairs)); ++blocks)
            if (waves(blocks) * (ceil_div(chunks, blocks) + kStart) < waves(best) * (ceil_div(chunks, best) + kStart))
                best = blocks;
        return static_cast<int>(best);
    }

    // `tails`: what is prepared, for the chain backward in time alone; nullptr: all.
    static void run(const GdnCall& call, const BackwardHandover& to, DType io, const Target& target,
                    const SummaryTail* tails = nullptr) {
        if (call.sequences == 0 || call.heads == 0) return;
        Args args{};
        set_call(args, call);
        map_keys(args, call, true, io, target);
        args.value = args.key;  // nobody loads them
        args.to = to;
        const i64 pairs = i64{call.sequences} * call.heads, chunks = ceil_div(i64{call.tokens}, i64{kChunk});
        const int multiprocessors = jit::device_traits(target.ordinal).multiprocessors;
        constexpr i64 kWaves = 8;  // a few heads may have nearly all chunks of tails
        args.tails = tails;
        args.preparers = tails == nullptr ? preparers(pairs, chunks, multiprocessors)
                                          : static_cast<int>(std::min(chunks, ceil_div(kWaves * multiprocessors, pairs)));
        launch<BackwardPrepare>(backward_prepare_config(call.dk, io), args, {args.preparers, call.heads, call.sequences},
                                target, [&](const auto& on) {
                                    return fmt::format("{} blocks for each of {} sequences and heads, on {} multiprocessors",
                                                       args.preparers, pairs, on.multiprocessors);
                                });
    }
};

struct BackwardChain {
    GDN_KERNEL(BackwardChain, gdn, backward_chain, BackwardChainConfig, BackwardChainArgs,
               "states, or their gradients, of every chunk for training on Hopper's tensor cores", .min_capability = 90,
               .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kBackwardChainConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kBackwardChainConfigurations, BackwardChainPlan>(config);
    }

    // channels: a gate for every channel of the key.
    static Config config_of(int dk, Direction direction, DType io, bool channels = false) {
        const int head_k = channels ? kKdaHeadK : chunked_config(dk, 1, io).head_k;
        return {.head_k = head_k, .direction = direction, .io = io, .channels = channels};
    }

    static bool takes(const GdnCall& call) {
        const i64 key_heads = call.heads / call.heads_per_key;
        const auto near = [](const Scalars& scalars) { return std::abs(scalars.token) <= kLongestScalarStride; };
        return call.tokens > 0 && jit::can_tile(tiled_tokens(call, call.query, key_heads, call.dk)) &&
               jit::can_tile(tiled_tokens(call, call.key, key_heads, call.dk)) &&
               jit::can_tile(tiled_tokens(call, call.value, call.heads, call.dv)) && near(call.gate) && near(call.beta);
    }

    static i64 row_tiles(i64 rows) { return ceil_div(rows, i64{kValueRows}); }

    // Segments of a chain between which states are not known: more than one where that takes fewer chunks one after another,
    // and every block runs at once. `chains`: how many are split so; the other one is in any segments. Packed sequences are not
    // split. The fewest segments of their length, so that none is empty.
    static int segments(const GdnCall& call, int chains, int multiprocessors) {
        constexpr i64 kLinks = 12;  // what launches and links take, in chunks
        constexpr int kMost = 8;
        const i64 pairs = i64{call.sequences} * call.heads, chunks = ceil_div(i64{call.tokens}, i64{kChunk});
        const i64 rows = row_tiles(call.dv), summary = rows + row_tiles(call.dk);
        i64 least = chunks;
        int best = 1;
        for (int count = 3; count <= kMost && call.cu_seqlens.data == nullptr; ++count) {
            const i64 length = ceil_div(chunks, i64{count});
            if (chains * pairs * (rows + (count - 2) * summary) > multiprocessors) break;
            const i64 in_all = pairs * (2 * rows * chunks + chains * (count - 2) * summary * length);
            if (const i64 each = std::max(2 * length + kLinks, ceil_div(in_all, i64{multiprocessors})); each < least) {
                least = each;
                best = count;
            }
        }
        return best;
    }
    // Words of `after` and `transitions` of a chain.
    static i64 link_words(const GdnCall& call, int segments) {
        return i64{call.sequences} * call.heads * (segments - 1) * (i64{call.dv} + call.dk) * call.dk;
    }
    static ChainSegments links(const GdnCall& call, int segments, float* memory) {
        if (segments == 1) return {};
        const i64 state = i64{call.dv} * call.dk, head = (segments - 1) * state;
        return {.count = segments,
                .length = static_cast<int>(ceil_div(ceil_div(i64{call.tokens}, i64{kChunk}), i64{segments})),
                .taken = segments - 1,
                .summarizes = true,
                .after = memory,
                .sequence_stride = call.heads * head,
                .head_stride = head,
                .segment_stride = state,
                .transitions = memory + i64{call.sequences} * call.heads * head};
    }

    // Backward in time, `count` listed segments at most. Nothing of their chunks is stored.
    static void run(const ListedSegments& listed, i64 count, const GdnCall& call, const BackwardHandover& to, DType io,
                    const Target& target) {
        Args args = args_of(call, to, true, io, target);
        args.output = args.states = args.value;  // nobody stores to them
        args.listed = listed;
        launch<BackwardChain>(config_of(call.dk, Direction::backward, io), args,
                              {count, listed.value_tiles + row_tiles(call.dk), 1}, target, [&](const auto& on) {
                                  return fmt::format(
                                      "gradients of states before sequences; {} value rows a block, for {} "
                                      "multiprocessors",
                                      kValueRows, on.multiprocessors);
                              });
    }

    // The chain forward in time is launched after the one backward, and starts before that has ended.
    static void run(Direction direction, const ChainSegments& chain, const GdnCall& call, const BackwardHandover& to, DType io,
                    const Target& target) {
        if (call.sequences == 0 || call.heads == 0) return;
        const bool backward = direction == Direction::backward;
        Args args = args_of(call, to, backward, io, target);
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, io, kChunk, target.ordinal); };
        args.output = map(backward ? tiled_tokens(call, call.output, call.heads, call.dv) : errors_of(to, call.heads, call.dv));
        if (!backward) args.call.outputs = 0;
        args.states = map(states_of(to, backward ? to.state_gradients : to.states, call.heads, call.dk, call.dv));
        args.chain = chain;
        const Config config = config_of(call.dk, direction, io, has_channels(call));
        const i64 tiles = row_tiles(call.dv) + (chain.summarizes ? row_tiles(call.dk) : 0),
                  parts = chain.taken * i64{call.sequences};
        launch<BackwardChain>(
            config, args, {tiles, call.heads, parts}, target,
            [&](const auto& on) {
                const char* what = backward ? "gradients of states" : "states";
                const char* const of = chain.summarizes ? ", and of summaries" : "";
                return fmt::format(
                    "{}; {} blocks of {} value rows{} for {} multiprocessors; {} of {} segments of each sequence", what,
                    tiles * call.heads * parts, kValueRows, of, on.multiprocessors, chain.taken, chain.count);
            },
            !backward);
    }

  private:
    static bool has_channels(const GdnCall& call) { return call.channels.form != ChannelGate::none; }
    static Args args_of(const GdnCall& call, const BackwardHandover& to, bool backward, DType io, const Target& target) {
        Args args{};
        set_call(args, call);
        if (!has_channels(call)) map_keys(args, call, backward, io, target);
        args.value = jit::tile_map(tiled_tokens(call, call.value, call.heads, call.dv), io, kChunk, target.ordinal);
        args.to = to;
        return args;
    }
};

struct BackwardLinks {
    GDN_KERNEL(BackwardLinks, gdn, backward_links, BackwardLinksConfig, BackwardLinksArgs,
               "states between the segments of the backward's chains", .min_capability = 90, .max_capability = 90);

    static constexpr std::array kConfigurations = {BackwardLinksConfig{.columns = 128, .rows = 8}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const GdnCall& call, const Args& args, int chains, const Target& target) {
        const Config& config = kConfigurations.front();
        launch<BackwardLinks>(
            config, args, {ceil_div(call.dv, config.rows), i64{call.sequences} * call.heads, chains}, target,
            [&](const auto&) { return fmt::format("{} borders of segments, one after another", args.chains[0].count - 1); });
    }
};

}  // namespace gdn_cuda::gdn
