// Host side of layers/decode_layer: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/layers/decode_layer/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "../gdn/head_dimensions.hpp"

namespace gdn_cuda::layers {

struct DecodeLayerProblem {
    i64 sequences, tokens;
    int key_heads, heads_per_key, dk, dv;
    DType io, state;
    bool plain;  // dtypes and strides of the convolution's tensors allow vectors of four channels
    bool channel_gates = false;

    i64 groups() const { return sequences * key_heads; }
};

// Capacities in tokens. Shared memory for tokens is lost to row steps in flight.
inline constexpr std::array kLayerTokenRoom = {1, 4, kMostLayerTokens};
inline constexpr int kMostLayerBlocks = 8;  // per key head: every GPU with clusters supports clusters of 8
// Value heads are divided up to this many blocks per SM: more blocks would run in sequence, each with a prologue and an
// epilogue.
inline constexpr i64 kLayerBlocksAtOnce = 4;

struct DecodeLayerChoice {
    DecodeLayerConfig config;
    int heads_at_once, parts;  // value heads of a key head at a time, blocks per value head

    int blocks() const { return heads_at_once * parts; }
};

inline DecodeLayerChoice decode_layer_choice(const DecodeLayerProblem& problem, const jit::DeviceTraits& device) {
    const auto room = std::ranges::find_if(kLayerTokenRoom, [&](int tokens) { return problem.tokens <= tokens; });
    DecodeLayerChoice choice{{.head_k = problem.dk,
                              .io = problem.io,
                              .state = problem.state,
                              .tokens = *room,
                              .plain = problem.plain,
                              .channel_gates = problem.channel_gates},
                             1,
                             1};
    if (device.capability < 90) return choice;  // no clusters
    for (int heads = std::min(kMostLayerBlocks, problem.heads_per_key); heads > 1; --heads)
        if (problem.heads_per_key % heads == 0) {
            choice.heads_at_once = heads;
            break;
        }
    const auto fits = [&](int parts) {
        const i64 blocks = problem.groups() * choice.heads_at_once * parts;
        return choice.heads_at_once * parts <= kMostLayerBlocks && blocks <= kLayerBlocksAtOnce * device.multiprocessors;
    };
    while (choice.parts < kRowQuarters && fits(2 * choice.parts)) choice.parts *= 2;
    return choice;
}

inline std::string explain_decode_layer(const DecodeLayerProblem& problem, const jit::DeviceTraits& device) {
    const DecodeLayerChoice choice = decode_layer_choice(problem, device);
    return fmt::format(
        "{} key heads of sequences, {} block{} each, {} of a value head, for {} multiprocessors; shared memory for {} tokens",
        problem.groups(), choice.blocks(), choice.blocks() == 1 ? "" : "s", choice.parts, device.multiprocessors,
        choice.config.tokens);
}

inline constexpr std::array kDecodeLayerConfigurations = [] {
    std::array<DecodeLayerConfig, 8 * gdn::kExactHeadK.size() * (kLayerTokenRoom.size() + 1)> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int dk : gdn::kExactHeadK)
                for (const bool plain : {true, false}) {
                    for (const int tokens : kLayerTokenRoom)
                        all[n++] = {.head_k = dk, .io = io, .state = state, .tokens = tokens, .plain = plain};
                    all[n++] = {.head_k = dk, .io = io, .state = state, .tokens = 1, .plain = plain, .channel_gates = true};
                }
    return all;
}();

struct DecodeLayer {
    GDN_KERNEL(DecodeLayer, layers, decode_layer, DecodeLayerConfig, DecodeLayerArgs,
               "a layer's step: convolution, norms, gates and recurrence in one launch", .starts_early = true);

    static std::span<const Config> configurations() { return kDecodeLayerConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kDecodeLayerConfigurations, DecodeLayerSharedPlan>(config);
    }
    static int cluster(const Config&, const Args& args) { return args.heads_at_once * args.parts(); }

    static void run(const DecodeLayerProblem& problem, Args args, const Target& target) {
        if (problem.groups() == 0 || problem.tokens == 0) return;
        const DecodeLayerChoice choice = decode_layer_choice(problem, jit::device_traits(target.ordinal));
        args.heads_at_once = choice.heads_at_once;
        args.parts_log2 = choice.parts / 2;  // for 1, 2 or 4 parts
        launch<DecodeLayer>(choice.config, args, {problem.sequences * choice.blocks(), problem.key_heads, 1}, target,
                            [&](const auto& device) { return explain_decode_layer(problem, device); });
    }
};

}  // namespace gdn_cuda::layers
