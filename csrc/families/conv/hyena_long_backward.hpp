// conv/hyena_long_backward and conv/hyena_long_states on the host: configurations and launches.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_long/backward_plan.cuh>
#include <string>
#include <utility>

#include "../../launch/spec.hpp"
#include "hyena_long.hpp"
#include "hyena_segments.hpp"

namespace gdn_cuda::conv {

constexpr HyenaLongBackwardConfig hyena_long_backward_config(const HyenaLongProblem& problem) {
    return {.io = problem.io, .groups = problem.states <= kHyenaGroup ? 1 : kHyenaMostGroups, .columns = problem.columns};
}
constexpr HyenaLongStatesConfig hyena_long_states_config(const HyenaLongProblem& problem, bool reversed) {
    return {.io = problem.io,
            .groups = problem.states <= kHyenaGroup ? 1 : kHyenaMostGroups,
            .reversed = reversed,
            .columns = problem.columns};
}
// Contiguous channels: tiles and the tables of more than 16 states per channel do not fit into shared memory.
inline constexpr std::array<std::pair<int, bool>, 3> kHyenaLongBackwardShapes = {
    {{1, false}, {1, true}, {kHyenaMostStates, false}}};
constexpr std::array<HyenaLongBackwardConfig, 9> every_hyena_long_backward_configuration() {
    std::array<HyenaLongBackwardConfig, 9> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const auto& [states, columns] : kHyenaLongBackwardShapes)
            all[count++] = hyena_long_backward_config({io, states, columns});
    return all;
}
constexpr std::array<HyenaLongStatesConfig, 18> every_hyena_long_states_configuration() {
    std::array<HyenaLongStatesConfig, 18> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const auto& [states, columns] : kHyenaLongBackwardShapes)
            for (const bool reversed : {false, true}) all[count++] = hyena_long_states_config({io, states, columns}, reversed);
    return all;
}
inline constexpr std::array kHyenaLongBackwardConfigurations = every_hyena_long_backward_configuration();
inline constexpr std::array kHyenaLongStatesConfigurations = every_hyena_long_states_configuration();

inline i64 hyena_long_tiles(i64 tokens) {
    return ceil_div(tokens, kTileTokens);
}

struct HyenaLongStates {
    GDN_KERNEL(HyenaLongStates, conv, hyena_long_states, HyenaLongStatesConfig, HyenaLongBackwardArgs,
               "states of hyena_long between tiles, for its gradients", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kHyenaLongStatesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaLongStatesConfigurations, HyenaLongStatesSharedPlan>(config);
    }
    // The reversed pass, if warps split the tokens of a channel.
    static void run(const HyenaLongProblem& problem, const Args& args, const Target& target) {
        const HyenaLongArgs& forward = args.forward;
        if (forward.batches == 0 || forward.channels == 0 || forward.tokens == 0) return;
        launch_one(problem, false, args, target);
        if (forward.segments > 1) launch_one(problem, true, args, target);
    }
    static void launch_one(const HyenaLongProblem& problem, bool reversed, const Args& args, const Target& target) {
        const Config config = hyena_long_states_config(problem, reversed);
        launch<HyenaLongStates>(config, args, hyena_long_blocks(config, args.forward), target, [&](const auto&) {
            return fmt::format("{} every {} tokens", reversed ? "gradients of states" : "states",
                               reversed ? args.forward.segment_tokens : kTileTokens);
        });
    }
};

struct HyenaLongBackward {
    GDN_KERNEL(HyenaLongBackward, conv, hyena_long_backward, HyenaLongBackwardConfig, HyenaLongBackwardArgs,
               "gradients of hyena_long on tensor cores", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kHyenaLongBackwardConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHyenaLongBackwardConfigurations, HyenaLongBackwardSharedPlan>(config);
    }
    static bool takes_columns(HyenaLongProblem problem, const jit::DeviceTraits& device) {
        return problem.columns && problem.states <= kHyenaGroup &&
               shared_bytes(hyena_long_backward_config(problem)) <= device.shared_bytes_per_block;
    }
    static void run(const HyenaLongProblem& problem, const Args& args, const Target& target) {
        if (args.forward.batches == 0 || args.forward.channels == 0) return;
        const Config config = hyena_long_backward_config(problem);
        launch<HyenaLongBackward>(config, args, hyena_long_blocks(config, args.forward), target, [&](const auto&) {
            return fmt::format("up to {} states, a warp for each channel and {} tokens", config.groups * kHyenaGroup,
                               args.forward.segment_tokens);
        });
    }
};

}  // namespace gdn_cuda::conv
