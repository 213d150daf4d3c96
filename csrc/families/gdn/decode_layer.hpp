// Host side of gdn/decode_layer: configuration and launch.
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
};

// Tokens have shared memory of their own, which row steps in flight then lack.
inline constexpr std::array kLayerTokenRoom = {1, 4, kMostLayerTokens};

constexpr DecodeLayerConfig decode_layer_config(const DecodeLayerProblem& problem) {
    int tokens = kMostLayerTokens;
    for (size_t i = kLayerTokenRoom.size(); i-- > 0;)
        if (problem.tokens <= kLayerTokenRoom[i]) tokens = kLayerTokenRoom[i];
    return {.head_k = problem.dk, .io = problem.io, .state = problem.state, .tokens = tokens};
}

inline std::string explain_decode_layer(const DecodeLayerProblem& problem, const jit::DeviceTraits& device) {
    const DecodeLayerConfig config = decode_layer_config(problem);
    return fmt::format("{} blocks, one for each key head of a sequence, for {} multiprocessors; shared memory for {} tokens",
                       problem.sequences * problem.key_heads, device.multiprocessors, config.tokens);
}

inline constexpr std::array kDecodeLayerConfigurations = [] {
    std::array<DecodeLayerConfig, 4 * kExactHeadK.size() * kLayerTokenRoom.size()> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int dk : kExactHeadK)
                for (const int tokens : kLayerTokenRoom) all[n++] = {.head_k = dk, .io = io, .state = state, .tokens = tokens};
    return all;
}();

struct DecodeLayer {
    using Config = DecodeLayerConfig;
    using Args = DecodeLayerArgs;
    static constexpr const char *family = "gdn", *name = "decode_layer", *config_type = "DecodeLayerConfig",
                                *args_type = "DecodeLayerArgs";
    static constexpr const char* summary = "a layer's step: convolution, norms, gates and recurrence in one launch";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kDecodeLayerConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kDecodeLayerConfigurations, DecodeLayerSharedPlan>(
            config, std::make_index_sequence<kDecodeLayerConfigurations.size()>());
    }

    static void run(const DecodeLayerProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.tokens == 0) return;
        const Config config = decode_layer_config(problem);
        args.part_heads = std::clamp(config.part_rows() / problem.dv, 1, std::min(kMostPartHeads, problem.heads_per_key));
        launch<DecodeLayer>(config, args, {problem.sequences * problem.key_heads, 1, 1}, target,
                            [&](const auto& device) { return explain_decode_layer(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
