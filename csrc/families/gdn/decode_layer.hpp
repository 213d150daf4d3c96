// Host side of gdn/decode_layer and gdn/decode_layer_alone: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/decode_layer_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

struct DecodeLayerProblem {
    i64 sequences, tokens;
    int key_heads, heads_per_key, dk, dv;
    DType io, state;

    i64 groups() const { return sequences * key_heads; }
};

// Tokens have shared memory of their own, which row steps in flight then lack.
inline constexpr std::array kLayerTokenRoom = {1, 4, kMostLayerTokens};
// Blocks of a key head, with clusters. Many let few sequences use the whole GPU; few do less work twice.
inline constexpr std::array kLayerBlocks = {8, 4, 2};
inline constexpr i64 kLayerBlocksPerMultiprocessor = 16;

constexpr bool has_clusters(const jit::DeviceTraits& device) {
    return device.capability >= 90;
}

inline DecodeLayerConfig decode_layer_config(const DecodeLayerProblem& problem, const jit::DeviceTraits& device) {
    const auto room = std::ranges::find_if(kLayerTokenRoom, [&](int tokens) { return problem.tokens <= tokens; });
    const auto few_enough = [&](int blocks) {
        return problem.groups() * blocks <= kLayerBlocksPerMultiprocessor * device.multiprocessors;
    };
    const auto blocks = std::ranges::find_if(kLayerBlocks, few_enough);
    return {.head_k = problem.dk,
            .io = problem.io,
            .state = problem.state,
            .tokens = *room,
            .blocks = !has_clusters(device)          ? 1
                      : blocks == kLayerBlocks.end() ? kLayerBlocks.back()
                                                     : *blocks};
}

inline std::string explain_decode_layer(const DecodeLayerProblem& problem, const jit::DeviceTraits& device) {
    const DecodeLayerConfig config = decode_layer_config(problem, device);
    return fmt::format("{} key heads of sequences, {} block{} each, for {} multiprocessors; shared memory for {} tokens",
                       problem.groups(), config.blocks, config.blocks == 1 ? "" : "s", device.multiprocessors, config.tokens);
}

template <auto... kBlocks>
constexpr auto decode_layer_configurations() {
    std::array<DecodeLayerConfig, 4 * kExactHeadK.size() * kLayerTokenRoom.size() * sizeof...(kBlocks)> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int dk : kExactHeadK)
                for (const int tokens : kLayerTokenRoom)
                    for (const int blocks : {kBlocks...})
                        all[n++] = {.head_k = dk, .io = io, .state = state, .tokens = tokens, .blocks = blocks};
    return all;
}

// What both kernels share.
struct DecodeLayerSpec {
    using Config = DecodeLayerConfig;
    using Args = DecodeLayerArgs;
    static constexpr const char *family = "gdn", *config_type = "DecodeLayerConfig", *args_type = "DecodeLayerArgs";
    static constexpr bool uses_cutlass = false;

    static int threads(const Config& config) { return config.threads(); }
    template <const auto& kConfigurations>
    static int plan_bytes_of(const Config& config) {
        return plan_bytes<kConfigurations, DecodeLayerSharedPlan>(config, std::make_index_sequence<kConfigurations.size()>());
    }
};

inline constexpr auto kDecodeLayerConfigurations =
    decode_layer_configurations<kLayerBlocks[0], kLayerBlocks[1], kLayerBlocks[2]>();
inline constexpr auto kDecodeLayerAloneConfigurations = decode_layer_configurations<1>();

struct DecodeLayer : DecodeLayerSpec {
    static constexpr const char* name = "decode_layer";
    static constexpr const char* summary = "a layer's step: convolution, norms, gates and recurrence in one launch";
    static constexpr int min_capability = 90;

    static std::span<const Config> configurations() { return kDecodeLayerConfigurations; }
    static int shared_bytes(const Config& config) { return plan_bytes_of<kDecodeLayerConfigurations>(config); }
    static int cluster(const Config& config) { return config.blocks; }
};

struct DecodeLayerAlone : DecodeLayerSpec {
    static constexpr const char* name = "decode_layer_alone";
    static constexpr const char* summary = "the same for GPUs without clusters";
    static constexpr int min_capability = 80, max_capability = 89;

    static std::span<const Config> configurations() { return kDecodeLayerAloneConfigurations; }
    static int shared_bytes(const Config& config) { return plan_bytes_of<kDecodeLayerAloneConfigurations>(config); }
};

inline void run_decode_layer(const DecodeLayerProblem& problem, DecodeLayerArgs args, const Target& target) {
    if (problem.groups() == 0 || problem.tokens == 0) return;
    const DecodeLayerConfig config = decode_layer_config(problem, jit::device_traits(target.ordinal));
    args.part_heads =
        std::clamp(config.blocks * config.rows_per_block() / problem.dv, 1, std::min(kMostPartHeads, problem.heads_per_key));
    const Blocks blocks = {problem.groups() * config.blocks, 1, 1};
    const auto why = [&](const auto& device) { return explain_decode_layer(problem, device); };
    if (config.blocks == 1)
        launch<DecodeLayerAlone>(config, args, blocks, target, why);
    else
        launch<DecodeLayer>(config, args, blocks, target, why);
}

}  // namespace gdn_cuda::gdn
