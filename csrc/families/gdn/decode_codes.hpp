// Host side of gdn/decode_codes: where it runs, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/decode_codes_plan.cuh>

#include "decode.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kDecodeCodesHeads = {64, 96, 128};
// Fewer blocks, and each warp has one tile.
inline constexpr i64 kDecodeCodesBlocksPerMultiprocessor = 3;

constexpr bool runs_decode_codes(const DecodeProblem& problem) {
    return problem.state == DType::i8 && !problem.channel_gates &&
           std::ranges::find(kDecodeCodesHeads, problem.dk) != kDecodeCodesHeads.end();
}

inline constexpr std::array kDecodeCodesConfigurations = [] {
    std::array<DecodeCodesConfig, kDecodeCodesHeads.size() * 2 * 2> all{};
    size_t n = 0;
    for (const int dk : kDecodeCodesHeads)
        for (const DType io : {DType::bf16, DType::f16})
            for (const bool fused_gates : {true, false}) all[n++] = {dk, io, fused_gates};
    return all;
}();

struct DecodeCodes {
    GDN_KERNEL(DecodeCodes, gdn, decode_codes, DecodeCodesConfig, DecodeArgs,
               "one token a sequence on states of int8 codes, by pairs of fp16", .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kDecodeCodesConfigurations; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kDecodeCodesConfigurations, DecodeCodesSharedPlan>(config);
    }

    static void run(const DecodeProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0) return;
        constexpr int kRows = Config::kWarps * Config::kTileRows;
        const auto tiles_of = [&](int steps) { return ceil_div(args.dv, kRows * steps); };
        const i64 enough = kDecodeCodesBlocksPerMultiprocessor * jit::device_traits(target.ordinal).multiprocessors;
        args.steps = Config::kTiles;
        while (args.steps > 1 && tiles_of(args.steps) * problem.heads * problem.sequences < enough) args.steps /= 2;
        launch<DecodeCodes>({problem.dk, problem.io, problem.fused_gates}, args,
                            {tiles_of(args.steps), problem.heads, problem.sequences}, target, [&](const auto& device) {
                                return fmt::format("{} blocks of {} rows for {} multiprocessors",
                                                   tiles_of(args.steps) * problem.heads * problem.sequences, kRows * args.steps,
                                                   device.multiprocessors);
                            });
    }
};

}  // namespace gdn_cuda::gdn
