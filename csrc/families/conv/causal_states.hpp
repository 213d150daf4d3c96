// conv/causal_states and conv/causal_states_backward on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_states_plan.cuh>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::conv {

constexpr CausalStatesConfig causal_states_config(DType io) {
    return {.io = io, .threads = 128};
}
inline constexpr std::array kCausalStatesConfigurations = {causal_states_config(DType::bf16), causal_states_config(DType::f16),
                                                           causal_states_config(DType::f32)};

inline Blocks causal_states_blocks(i64 sequences, i64 channels) {
    return {sequences * ceil_div(channels, causal_states_config(DType::f32).threads), 1, 1};
}

struct CausalFinalStates {
    using Config = CausalStatesConfig;
    using Args = CausalStatesArgs;
    static constexpr const char *family = "conv", *name = "causal_states", *config_type = "CausalStatesConfig",
                                *args_type = "CausalStatesArgs";
    static constexpr const char* summary = "the last inputs of each sequence of a causal convolution";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalStatesConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(DType io, const Args& args, const Target& target) {
        const Blocks blocks = causal_states_blocks(args.sequences.sequences, args.channels);
        if (blocks[0] == 0 || args.final_states.positions == 0) return;
        launch<CausalFinalStates>(causal_states_config(io), args, blocks, target,
                                  [](const auto&) { return std::string("a thread for each channel of a sequence"); });
    }
};

struct CausalStatesBackward {
    using Config = CausalStatesConfig;
    using Args = CausalStatesBackwardArgs;
    static constexpr const char *family = "conv", *name = "causal_states_backward", *config_type = "CausalStatesConfig",
                                *args_type = "CausalStatesBackwardArgs";
    static constexpr const char* summary = "gradients of a causal convolution by initial states";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kCausalStatesConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(DType io, const Args& args, const Target& target) {
        const CausalArgs& forward = args.call.forward;
        const Blocks blocks = causal_states_blocks(forward.sequences.sequences, forward.channels);
        if (blocks[0] == 0 || args.dinitial.positions == 0) return;
        launch<CausalStatesBackward>(causal_states_config(io), args, blocks, target,
                                     [](const auto&) { return std::string("a thread for each channel of a sequence"); });
    }
};

}  // namespace gdn_cuda::conv
