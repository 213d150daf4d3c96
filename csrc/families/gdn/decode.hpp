// Host side of gdn/decode: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

// gdn/decode: one token and one slot per sequence, rows of whole 16-byte units, dk in kExactHeadK.
struct DecodeProblem {
    i64 sequences;
    int heads, dk, dv;
    DType io, state;
    bool fused_gates;
    bool channel_gates = false;  // a gate for every channel of the key

    constexpr bool operator==(const DecodeProblem&) const = default;

    GDN_FIELDS(sequences, heads, dk, dv, io, state, fused_gates, channel_gates)

    bool is_runnable() const {
        return sequences > 0 && sequences <= kMostBlocks[2] && heads > 0 && heads <= kMostBlocks[1] && has_exact_kernel(dk) &&
               dv > 0 && dv <= kMaxHeadDim && bytes_of(io) == 2 && bytes_of(state) <= 4 && !is_complex(state);
    }
};

struct DecodeChoice {
    DecodeConfig config;
    int steps;  // steps over rows that a block takes

    constexpr bool operator==(const DecodeChoice&) const = default;

    GDN_FIELDS(steps)  // the problem and the steps determine the configuration
};
using DecodeWinners = Winners<DecodeProblem, DecodeChoice>;

// More rows per block share its prologue and keep more bytes in flight, as long as every SM has a few blocks. Measured on an
// H200: four stages saturate memory, and three blocks per SM balance the load.
inline constexpr int kDecodeStages = 4, kDecodeStagesOfCodes = 4;
inline constexpr i64 kDecodeBlocksPerMultiprocessor = 3;

inline DecodeChoice decode_with_steps(const DecodeProblem& problem, int steps) {
    const int stages = problem.state == DType::i8 ? kDecodeStagesOfCodes : kDecodeStages;
    return {{.head_k = problem.dk,
             .io = problem.io,
             .state = problem.state,
             .warps = 4,
             .stages = steps > 1 ? stages : 0,
             .fused_gates = problem.fused_gates && !problem.channel_gates,
             .channel_gates = problem.channel_gates},
            steps};
}
inline int most_decode_steps(const DecodeProblem& problem) {
    return std::min(8, decode_with_steps(problem, 1).config.layout().lanes);
}
inline i64 decode_blocks(const DecodeProblem& problem, const DecodeChoice& choice) {
    return problem.sequences * problem.heads * ceil_div(problem.dv, choice.config.rows_per_step() * choice.steps);
}

inline DecodeChoice decode_choice(const DecodeProblem& problem, const jit::DeviceTraits& device,
                                  const DecodeWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    for (int steps = most_decode_steps(problem); steps > 1; steps /= 2) {
        const DecodeChoice choice = decode_with_steps(problem, steps);
        if (decode_blocks(problem, choice) >= kDecodeBlocksPerMultiprocessor * device.multiprocessors) return choice;
    }
    return decode_with_steps(problem, 1);
}

// The heuristic's choice first, then the other numbers of steps that leave no step without rows. Rows do not depend on each
// other, so none changes a bit.
inline std::vector<DecodeChoice> decode_candidates(const DecodeProblem& problem, const jit::DeviceTraits& device) {
    if (!problem.is_runnable()) return {};
    std::vector<DecodeChoice> all{decode_choice(problem, device)};
    for (int steps = 1; steps <= most_decode_steps(problem); steps *= 2) {
        const DecodeChoice other = decode_with_steps(problem, steps);
        if (other != all.front() && (steps - 1) * other.config.rows_per_step() < problem.dv) all.push_back(other);
    }
    return all;
}

inline std::string explain_decode(const DecodeProblem& problem, const jit::DeviceTraits& device,
                                  const DecodeWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const DecodeChoice choice = decode_choice(problem, device);
    const i64 blocks = decode_blocks(problem, choice);
    return choice.steps == 1
               ? fmt::format("{} blocks of one step each: latency counts, rows go straight to registers", blocks)
               : fmt::format("{} blocks of {} steps for {} multiprocessors: bytes count, rows pass through {} stages", blocks,
                             choice.steps, device.multiprocessors, choice.config.stages);
}

struct DecodeTuning {
    GDN_TUNING(DecodeTuning);

    using Problem = DecodeProblem;
    using Choice = DecodeChoice;
    static constexpr std::array kernels = {"gdn/decode"};
    static constexpr auto& candidates = decode_candidates;
    static constexpr auto& explain = explain_decode;
};

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
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const auto [config, steps] = decode_choice(problem, device, tuned<DecodeTuning>(device));
        args.steps = steps;
        const i64 tiles = ceil_div(args.dv, config.rows_per_step() * steps);
        launch<Decode>(config, args, {tiles, problem.heads, problem.sequences}, target,
                       [&](const auto& on) { return explain_decode(problem, on, tuned<DecodeTuning>(on)); });
    }
};

}  // namespace gdn_cuda::gdn
