// Host side of gdn/decode: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// gdn/decode: one token and one slot per sequence, rows of whole 16-byte units, dk in kExactHeadK.
struct DecodeProblem {
    i64 sequences;
    int heads, dk, dv;
    DType io, state;
    bool fused_gates;
    bool channel_gates = false;  // a gate for every channel of the key
};

struct DecodeChoice {
    DecodeConfig config;
    int steps;  // steps over rows that a block takes
};

// More rows per block share its prologue and keep more bytes in flight, as long as every SM has a few blocks. Measured on an
// H200: four stages saturate memory, and three blocks per SM balance the load.
inline constexpr int kDecodeStages = 4, kDecodeStagesOfCodes = 4;
inline constexpr i64 kDecodeBlocksPerMultiprocessor = 3;

inline DecodeChoice decode_choice(const DecodeProblem& problem, const jit::DeviceTraits& device) {
    DecodeConfig config{.head_k = problem.dk,
                        .io = problem.io,
                        .state = problem.state,
                        .warps = 4,
                        .stages = problem.state == DType::i8 ? kDecodeStagesOfCodes : kDecodeStages,
                        .fused_gates = problem.fused_gates && !problem.channel_gates,
                        .channel_gates = problem.channel_gates};
    for (int steps = std::min(8, config.layout().lanes); steps > 1; steps /= 2) {
        const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_step() * steps);
        if (blocks >= kDecodeBlocksPerMultiprocessor * device.multiprocessors) return {config, steps};
    }
    config.stages = 0;
    return {config, 1};
}

inline std::string explain_decode(const DecodeProblem& problem, const jit::DeviceTraits& device) {
    const auto [config, steps] = decode_choice(problem, device);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_step() * steps);
    return steps == 1 ? fmt::format("{} blocks of one step each: latency counts, rows go straight to registers", blocks)
                      : fmt::format("{} blocks of {} steps for {} multiprocessors: bytes count, rows pass through {} stages",
                                    blocks, steps, device.multiprocessors, config.stages);
}

// All configurations that decode_choice can return.
inline std::vector<DecodeConfig> decode_configurations() {
    std::vector<DecodeConfig> all;
    for (DType io : {DType::bf16, DType::f16})
        for (DType state : {DType::f32, DType::bf16, DType::i8})
            for (int dk : kExactHeadK)
                for (bool fused_gates : {true, false})
                    for (bool channel_gates : {false, true})
                        for (i64 sequences : {1, 4096}) {
                            if (state == DType::i8 && !fused_gates && !channel_gates) continue;  // fused_decode alone has codes
                            const DecodeConfig config =
                                decode_choice({sequences, 1, dk, 128, io, state, fused_gates, channel_gates}, {}).config;
                            if (std::ranges::find(all, config) == all.end()) all.push_back(config);
                        }
    return all;
}

struct Decode {
    GDN_KERNEL(Decode, gdn, decode, DecodeConfig, DecodeArgs,
               "one token a sequence, slots of a state pool updated in place: the serving step", .starts_early = true);

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, decode_configurations);
    }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return config.shared_bytes(); }

    static void run(const DecodeProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0) return;
        const auto [config, steps] = decode_choice(problem, jit::device_traits(target.ordinal));
        args.steps = steps;
        const i64 tiles = ceil_div(args.dv, config.rows_per_step() * steps);
        launch<Decode>(config, args, {tiles, problem.heads, problem.sequences}, target,
                       [&](const auto& device) { return explain_decode(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
