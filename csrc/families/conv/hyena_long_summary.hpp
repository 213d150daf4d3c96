// conv/hyena_long_summary on the host: configurations and launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_long/summary_plan.cuh>

#include "../../launch/spec.hpp"
#include "hyena_segments.hpp"

namespace gdn_cuda::conv {

struct HyenaLongSummary {
    GDN_KERNEL(HyenaLongSummary, conv, hyena_long_summary, HyenaLongSummaryConfig, HyenaLongSummaryArgs,
               "states of hyena_long after a sequence, or gradients of those before it, from those of its segments",
               .uses_cutlass = true);

    static constexpr std::array kConfigurations = {Config{DType::bf16, false}, Config{DType::f16, false},
                                                   Config{DType::f32, false}, Config{DType::f32, true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config&) { return 0; }

    // As many segments, each of which a channel skips or reads as a whole, as their least length allows. A segment computes
    // tables from the poles, so that length is larger where channels are many.
    static HyenaSplit split(i64 rows, i64 tokens, int multiprocessors) {
        const int tiles = rows >= i64{8} * multiprocessors ? 16 : 4;
        return hyena_split(rows, tokens, kTileTokens, tiles * kTileTokens, i64{1} << 40);
    }
    static void run(DType io, bool reversed, const Args& args, const Target& target) {
        const i64 states = i64{args.forward.batches} * args.forward.channels * args.forward.states;
        launch<HyenaLongSummary>({reversed ? DType::f32 : io, reversed}, args, {ceil_div(states, Config::kThreads), 1, 1},
                                 target, [&](const auto&) {
                                     return fmt::format("{} segments of {} tokens, one thread a state", args.forward.segments,
                                                        args.forward.segment_tokens);
                                 });
    }
};

}  // namespace gdn_cuda::conv
