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
    return std::array{SelectivePiecesConfig{exponential, false, 4, 4}, SelectivePiecesConfig{zoh, false, 4, 4},
                      SelectivePiecesConfig{bilinear, false, 4, 4},    SelectivePiecesConfig{s7, false, 4, 4},
                      SelectivePiecesConfig{rglru, false, 4, 4},       SelectivePiecesConfig{exponential, true, 2, 8},
                      SelectivePiecesConfig{zoh, true, 2, 8},          SelectivePiecesConfig{bilinear, true, 2, 8}};
}();

inline SelectivePiecesConfig selective_pieces_config(Transition transition, bool is_complex) {
    return *std::ranges::find_if(kSelectivePiecesConfigurations, [&](const SelectivePiecesConfig& config) {
        return config.transition == transition && config.is_complex == is_complex;
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

    // Computes the maps of all segments but the one computed last.
    static void run(Transition transition, bool is_complex, Args args, const Target& target) {
        const Config config = selective_pieces_config(transition, is_complex);
        args.groups = static_cast<int>(ceil_div(args.in.state_size, config.group()));
        const i64 blocks = args.in.dim / args.span * ceil_div(args.span, config.channels());
        launch<SelectivePieces>(
            config, args, {blocks * args.groups * args.in.sequences, args.segments.count - 1, 1}, target, [&](const auto&) {
                return fmt::format("{} of {} segments, {}: {} channels and {} states a block", args.segments.count - 1,
                                   args.segments.count, args.reverse ? "in reverse" : "forward", config.channels(),
                                   config.group());
            });
    }
};

}  // namespace gdn_cuda::scan
