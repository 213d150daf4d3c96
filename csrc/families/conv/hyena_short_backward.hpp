// conv/hyena_short_backward and conv/hyena_short_columns_backward on the host: configuration, split and launch.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short/backward_plan.cuh>

#include "hyena_short.hpp"

namespace gdn_cuda::conv {

// Base of both Specs. The split gives the number of partial sums, so it is chosen before the launch.
struct HyenaShortBackwardCommon {
    using Config = HyenaShortConfig;
    using Args = HyenaShortBackwardArgs;

    static int threads(const Config&) { return kHyenaShortThreads; }
    template <class Spec>
    static void run_rows(i64 rows, const Config& config, const Args& args, const Target& target, const char* row) {
        if (rows == 0) return;
        launch<Spec>(config, args, hyena_blocks(rows, args.forward.segments, kHyenaShortWarps), target, [&](const auto&) {
            return explain_hyena_short(config, row, {args.forward.segments, args.forward.segment_tokens});
        });
    }
};

struct HyenaShortBackward : HyenaShortBackwardCommon {
    GDN_KERNEL(HyenaShortBackward, conv, hyena_short_backward, HyenaShortConfig, HyenaShortBackwardArgs,
               "gradients of conv/hyena_short, tokens contiguous");

    static std::span<const Config> configurations() { return kHyenaShortConfigurations; }
    static int shared_bytes(const Config&) { return 0; }
    static constexpr int kWarpsAnSm = 64;  // per launch: a few waves, so that the last one is short

    static HyenaSplit split(const HyenaShortProblem& problem, i64 batches, i64 channels, i64 tokens,
                            const jit::DeviceTraits& device) {
        const int step = HyenaShortBackwardTile{hyena_short_config(problem).taps}.step();
        return hyena_split(batches * channels, tokens, step, step, i64{kWarpsAnSm} * device.multiprocessors);
    }
    static void run(const HyenaShortProblem& problem, const Args& args, const Target& target) {
        const i64 rows = i64{args.forward.batches} * args.forward.channels;
        run_rows<HyenaShortBackward>(rows, hyena_short_config(problem), args, target, "channel");
    }
};

struct HyenaShortColumnsBackward : HyenaShortBackwardCommon {
    GDN_KERNEL(HyenaShortColumnsBackward, conv, hyena_short_columns_backward, HyenaShortConfig, HyenaShortBackwardArgs,
               "the same, channels contiguous");

    static constexpr int kWaves = 4;          // per launch, so that the last one is short
    static constexpr int kLeastFilters = 16;  // least length of a segment, in filter lengths: the tokens of two are read twice

    static std::span<const Config> configurations() { return kHyenaShortColumnsConfigurations; }
    static int shared_bytes(const Config& config) {
        return kHyenaShortWarps * HyenaShortBackwardColumns{config}.shared_bytes();
    }
    static i64 rows_of(const Config& config, i64 batches, i64 channels) {
        return batches * ceil_div(channels, HyenaShortBackwardColumns{config}.warp_channels());
    }
    static HyenaSplit split(const HyenaShortProblem& problem, i64 batches, i64 channels, i64 tokens,
                            const jit::DeviceTraits& device) {
        const Config config = hyena_short_columns_config(problem);
        const HyenaShortBackwardColumns columns{config};
        const i64 wave = i64{columns.blocks()} * kHyenaShortWarps * device.multiprocessors;
        return hyena_split_by_waves(rows_of(config, batches, channels), tokens, columns.step(), kLeastFilters * columns.delay(),
                                    wave, kWaves, 2 * columns.delay());
    }
    static void run(const HyenaShortProblem& problem, const Args& args, const Target& target) {
        const Config config = hyena_short_columns_config(problem);
        run_rows<HyenaShortColumnsBackward>(rows_of(config, args.forward.batches, args.forward.channels), config, args, target,
                                            "group of channels");
    }
};

}  // namespace gdn_cuda::conv
