// scan/selective_pieces on the host: its configurations, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/selective_pieces_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

inline constexpr std::array kSelectivePiecesConfigurations = [] {
    using enum Transition;
    constexpr std::array kForms{SelectivePiecesConfig{exponential, false, 4, 4}, SelectivePiecesConfig{zoh, false, 4, 4},
                                SelectivePiecesConfig{bilinear, false, 4, 4},    SelectivePiecesConfig{s7, false, 4, 4},
                                SelectivePiecesConfig{rglru, false, 4, 4},       SelectivePiecesConfig{exponential, true, 2, 8},
                                SelectivePiecesConfig{zoh, true, 2, 8},          SelectivePiecesConfig{bilinear, true, 2, 8}};
    std::array<SelectivePiecesConfig, 2 * kForms.size()> all;
    for (size_t i = 0; i < kForms.size(); ++i) {
        all[i] = all[i + kForms.size()] = kForms[i];
        all[i + kForms.size()].is_summary = true;
    }
    return all;
}();

inline SelectivePiecesConfig selective_pieces_config(Transition transition, bool is_complex, bool is_summary) {
    return *std::ranges::find_if(kSelectivePiecesConfigurations, [&](const SelectivePiecesConfig& config) {
        return config.transition == transition && config.is_complex == is_complex && config.is_summary == is_summary;
    });
}

struct SelectivePieces {
    GDN_KERNEL(SelectivePieces, scan, selective_pieces, SelectivePiecesConfig, SelectivePiecesArgs,
               "maps of the segments of split sequences, before scan/selective_forward and _backward");

    static std::span<const Config> configurations() { return kSelectivePiecesConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectivePiecesConfigurations, SelectivePiecesSharedPlan>(config);
    }

    // Computes the maps of all segments but the one computed last, or for a summary of those that matter.
    static void run(const Config& config, Args args, const Target& target) {
        args.groups = static_cast<int>(ceil_div(args.in.state_size, config.group()));
        const i64 blocks = args.in.dim / args.span * ceil_div(args.span, config.channels());
        const int maps = args.segments.count - (config.is_summary ? 0 : 1);
        launch<SelectivePieces>(config, args, {blocks * args.groups * args.in.sequences, maps, 1}, target, [&](const auto&) {
            return fmt::format("{}{} of {} segments, {}: {} channels and {} states a block", config.skips() ? "at most " : "",
                               maps, args.segments.count, args.reverse ? "in reverse" : "forward", config.channels(),
                               config.group());
        });
    }
};

}  // namespace gdn_cuda::scan
