// scan/selective_summary on the host: its Spec.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_summary_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct SelectiveSummary {
    GDN_KERNEL(SelectiveSummary, scan, selective_summary, SelectiveSummaryConfig, SelectiveSummaryArgs,
               "states after sequences, or in reverse gradients of those before them, from the maps of scan/selective_pieces");

    static constexpr std::array kConfigurations = {Config{false}, Config{true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(bool is_complex, const Args& args, const Target& target) {
        launch<SelectiveSummary>(
            {is_complex}, args, {ceil_div(args.sequences * args.states, Config::kThreads), 1, 1}, target,
            [&](const auto&) { return fmt::format("{} segments, one thread a state", args.segments.count); });
    }
};

}  // namespace gdn_cuda::scan
