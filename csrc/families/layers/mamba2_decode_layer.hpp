// Host side of layers/mamba2_decode_layer: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/layers/mamba2_decode_layer_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "../scan/selective_step.hpp"

namespace gdn_cuda::layers {

struct Mamba2LayerProblem {
    i64 sequences;
    int groups, group_rows;  // heads of a group times their channels
    int columns;             // states of a channel
    DType state;

    TiedStepConfig config() const { return {state, columns}; }
    i64 row_steps() const { return ceil_div(group_rows, config().rows_per_step()); }
};

struct Mamba2LayerChoice {
    int parts;      // blocks of a group
    int part_rows;  // rows of a block

    constexpr bool operator==(const Mamba2LayerChoice&) const = default;
};

inline constexpr int kMostMamba2Parts = 8;  // every GPU with clusters supports clusters of 8

// As few blocks of a group as leave every SM four, as many as registers let be on one: each computes the convolution of B and C
// again.
inline Mamba2LayerChoice mamba2_layer_choice(const Mamba2LayerProblem& problem, const jit::DeviceTraits& device) {
    constexpr int kBlocksAtOnce = 4;
    const bool has_clusters = device.capability >= 90;
    int parts = 1;
    while (has_clusters && parts < kMostMamba2Parts && 2 * parts <= problem.row_steps() &&
           problem.sequences * problem.groups * parts < kBlocksAtOnce * device.multiprocessors)
        parts *= 2;
    const i64 steps = ceil_div(problem.row_steps(), parts);
    return {static_cast<int>(ceil_div(problem.row_steps(), steps)), static_cast<int>(steps * problem.config().rows_per_step())};
}

inline std::string explain_mamba2_layer(const Mamba2LayerProblem& problem, const jit::DeviceTraits& device) {
    const Mamba2LayerChoice choice = mamba2_layer_choice(problem, device);
    return fmt::format("{} groups of sequences, {} block{} of {} rows each, for {} multiprocessors",
                       problem.sequences * problem.groups, choice.parts, choice.parts == 1 ? "" : "s", choice.part_rows,
                       device.multiprocessors);
}

struct Mamba2DecodeLayerKernel {
    GDN_KERNEL(Mamba2DecodeLayerKernel, layers, mamba2_decode_layer, TiedStepConfig, Mamba2LayerArgs,
               "a Mamba-2 layer's step: convolution and scan in one launch", .starts_early = true);

    static std::span<const Config> configurations() { return scan::kTiedSteps; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<scan::kTiedSteps, Mamba2LayerSharedPlan>(config); }
    static int cluster(const Config&, const Args& args) { return args.parts; }

    static void run(const Mamba2LayerProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.groups == 0 || problem.group_rows == 0) return;
        const Mamba2LayerChoice choice = mamba2_layer_choice(problem, jit::device_traits(target.ordinal));
        args.parts = choice.parts;
        args.part_rows = choice.part_rows;
        launch<Mamba2DecodeLayerKernel>(problem.config(), args, {problem.sequences * choice.parts, problem.groups, 1}, target,
                                        [&](const auto& device) { return explain_mamba2_layer(problem, device); });
    }
};

}  // namespace gdn_cuda::layers
