// conv/hyena_long on the host: the configuration and split of a problem, and its launches.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_long/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "hyena_segments.hpp"

namespace gdn_cuda::conv {

struct HyenaLongProblem {
    DType io;
    i64 states;
    bool columns;  // channels are contiguous, in whole vectors
};

constexpr HyenaLongConfig hyena_long_config(const HyenaLongProblem& problem, bool sectors, bool only_states) {
    return {.io = problem.io,
            .groups = problem.states <= kHyenaGroup ? 1 : kHyenaMostGroups,
            .columns = problem.columns,
            .sectors = sectors,
            .only_states = only_states};
}
constexpr std::array<HyenaLongConfig, 30> every_hyena_long_configuration() {
    std::array<HyenaLongConfig, 30> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const bool only_states : {false, true}) {
            for (const int states : {1, kHyenaMostStates})
                for (const bool columns : {false, true})
                    all[count++] = hyena_long_config({io, states, columns}, false, only_states);
            all[count++] = hyena_long_config({io, 1, true}, true, only_states);
        }
    return all;
}
inline constexpr std::array kHyenaLongConfigurations = every_hyena_long_configuration();

// With few channels, several warps split the tokens of one, to have enough loads in flight for memory's bandwidth: the first
// launch reads x1 and v once more, half of what the second moves.
inline HyenaSplit hyena_long_split(i64 rows, i64 tokens, const jit::DeviceTraits& device) {
    constexpr int kEnoughWarpsAnSm = 6, kWarpsAnSm = 16, kLeastTokens = 4 * kTileTokens;
    const bool enough = rows >= i64{kEnoughWarpsAnSm} * device.multiprocessors;
    return hyena_split(rows, tokens, kTileTokens, kLeastTokens, enough ? rows : i64{kWarpsAnSm} * device.multiprocessors);
}

Blocks hyena_long_blocks(const auto& config, const HyenaLongArgs& args) {
    const i64 rows = config.columns ? ceil_div(args.channels, config.warps()) * config.warps() : args.channels;
    return hyena_blocks(args.batches * rows, args.segments, config.warps());
}

struct HyenaLong {
    GDN_KERNEL(HyenaLong, conv, hyena_long, HyenaLongConfig, HyenaLongArgs,
               "gated convolution with a sum of exponentials on tensor cores", .uses_cutlass = true);

    static std::span<const Config> configurations() { return kHyenaLongConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kHyenaLongConfigurations, HyenaLongSharedPlan>(config); }
    // Tiles of contiguous channels need more shared memory than some GPUs have. Those use blocks with half of the channels;
    // where these do not fit either, and where channels are not whole vectors, elements are loaded one by one.
    static Config choose(HyenaLongProblem problem, bool only_states, const jit::DeviceTraits& device) {
        const auto fits = [&](const Config& config) {  // both launches use the same layout and blocks of channels
            Config larger = config;
            larger.only_states = false;
            return shared_bytes(larger) <= device.shared_bytes_per_block;
        };
        const Config sectors = hyena_long_config(problem, true, only_states);
        if (problem.columns && problem.states <= kHyenaGroup && fits(sectors)) return sectors;
        problem.columns = problem.columns && fits(hyena_long_config(problem, false, only_states));
        return hyena_long_config(problem, false, only_states);
    }
    static void launch_one(const HyenaLongProblem& problem, bool only_states, Args args, const Target& target) {
        args.vectors &= !problem.columns;  // vectors of channels are not vectors of tokens
        const Config config = choose(problem, only_states, jit::device_traits(target.ordinal));
        launch<HyenaLong>(config, args, hyena_long_blocks(config, args), target, [&](const auto&) {
            return fmt::format("up to {} states, a warp for each channel and {} tokens{}", config.groups * kHyenaGroup,
                               args.segment_tokens, config.columns ? ", blocks of adjacent channels" : "");
        });
    }
    // args.segments and args.segment_tokens come from hyena_long_split.
    static void run(const HyenaLongProblem& problem, const Args& args, const Target& target) {
        if (args.batches == 0 || args.channels == 0) return;
        if (args.segments > 1) {
            Args first = args;
            --first.segments;  // nothing follows the last segment
            launch_one(problem, true, first, target);
        }
        launch_one(problem, false, args, target);
    }
};

}  // namespace gdn_cuda::conv
