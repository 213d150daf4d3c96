// conv/hyena_filter and conv/hyena_filter_backward on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_filter/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::conv {

struct HyenaFilterKernel {
    GDN_KERNEL(HyenaFilterKernel, conv, hyena_filter, HyenaFilterConfig, HyenaFilterArgs,
               "filters of a modal form, of any length");

    static constexpr std::array kConfigurations = {Config{.stretches = 4}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kHyenaFilterThreads; }
    static int shared_bytes(const Config&) { return 0; }
    static i64 blocks(i64 rows, i64 tokens) { return rows * ceil_div(tokens, kConfigurations.front().tokens()); }

    static void run(const Args& args, const Target& target) {
        const Config config = kConfigurations.front();
        if (args.rows == 0 || args.tokens == 0) return;
        launch<HyenaFilterKernel>(config, args, {blocks(args.rows, args.tokens), 1, 1}, target,
                                  [&](const auto&) { return fmt::format("{} tokens of a row a block", config.tokens()); });
    }
};

struct HyenaFilterBackwardKernel {
    GDN_KERNEL(HyenaFilterBackwardKernel, conv, hyena_filter_backward, HyenaFilterBackwardConfig, HyenaFilterArgs,
               "gradients of filters in modal form: sums over a segment of a row");

    static constexpr std::array kConfigurations = {Config{.states = 4, .stretches = 64}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kHyenaFilterThreads; }
    static int shared_bytes(const Config&) { return 0; }
    static i64 units(i64 tokens) { return ceil_div(tokens, kConfigurations.front().tokens()); }
    static i64 blocks(i64 rows, i64 count, i64 tokens) {
        return rows * units(tokens) * ceil_div(count, kConfigurations.front().block_states());
    }

    static void run(const Args& args, const Target& target) {
        const Config config = kConfigurations.front();
        if (args.rows == 0 || args.tokens == 0) return;
        launch<HyenaFilterBackwardKernel>(
            config, args, {blocks(args.rows, args.count, args.tokens), 1, 1}, target,
            [&](const auto&) { return fmt::format("{} tokens and {} poles a block", config.tokens(), config.block_states()); });
    }
};

}  // namespace gdn_cuda::conv
