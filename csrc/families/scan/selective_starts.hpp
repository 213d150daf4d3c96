// scan/selective_starts on the host: its Spec.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_starts_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct SelectiveStarts {
    using Config = SelectiveStartsConfig;
    using Args = SelectiveStartsArgs;
    static constexpr const char *family = "scan", *name = "selective_starts", *config_type = "SelectiveStartsConfig",
                                *args_type = "SelectiveStartsArgs";
    static constexpr const char* summary =
        "states before the segments of split sequences, from the maps of scan/selective_pieces";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

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
