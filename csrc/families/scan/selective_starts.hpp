// scan/selective_starts on the host: its Spec.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_starts_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct SelectiveStarts {
    GDN_KERNEL(SelectiveStarts, scan, selective_starts, SelectiveStartsConfig, SelectiveStartsArgs,
               "states before the segments of split sequences, from the maps of scan/selective_pieces");

    static constexpr std::array kConfigurations = {Config{false}, Config{true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(bool is_complex, const Args& args, const Target& target) {
        launch<SelectiveStarts>(
            {is_complex}, args, {ceil_div(args.sequences * args.states, Config::kThreads), 1, 1}, target,
            [&](const auto&) { return fmt::format("{} segments, one thread a state", args.segments.count); });
    }
};

}  // namespace gdn_cuda::scan
