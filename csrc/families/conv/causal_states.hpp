// conv/causal_states and conv/causal_states_backward on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_states_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::conv {

constexpr CausalStatesConfig causal_states_config(DType io) {
    return {.io = io, .threads = 128};
}
inline constexpr std::array kCausalStatesConfigurations = {causal_states_config(DType::bf16), causal_states_config(DType::f16),
                                                           causal_states_config(DType::f32)};

inline Blocks causal_states_blocks(i64 sequences, i64 channels) {
    return {sequences * ceil_div(channels, causal_states_config(DType::f32).threads), 1, 1};
}

// Base of both Specs.
struct CausalStatesSpec {
    using Config = CausalStatesConfig;

    static std::span<const Config> configurations() { return kCausalStatesConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }
    template <class Spec>
    static void run_states(DType io, const typename Spec::Args& args, i64 sequences, i64 channels, const CausalStates& written,
                           const Target& target) {
        const Blocks blocks = causal_states_blocks(sequences, channels);
        if (blocks[0] == 0 || written.positions == 0) return;
        launch<Spec>(causal_states_config(io), args, blocks, target,
                     [](const auto&) { return std::string("a thread for each channel of a sequence"); });
    }
};

struct CausalFinalStates : CausalStatesSpec {
    GDN_KERNEL(CausalFinalStates, conv, causal_states, CausalStatesConfig, CausalStatesArgs,
               "the last inputs of each sequence of a causal convolution", .starts_early = true);

    static void run(DType io, const Args& args, const Target& target) {
        run_states<CausalFinalStates>(io, args, args.sequences.sequences, args.channels, args.final_states, target);
    }
};

struct CausalStatesBackward : CausalStatesSpec {
    GDN_KERNEL(CausalStatesBackward, conv, causal_states_backward, CausalStatesConfig, CausalStatesBackwardArgs,
               "gradients of a causal convolution by initial states");

    static void run(DType io, const Args& args, const Target& target) {
        const CausalArgs& forward = args.call.forward;
        run_states<CausalStatesBackward>(io, args, forward.sequences.sequences, forward.channels, args.dinitial, target);
    }
};

}  // namespace gdn_cuda::conv
