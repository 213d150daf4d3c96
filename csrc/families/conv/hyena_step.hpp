// conv/hyena_fir_step and conv/hyena_modal_step on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_step_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::conv {

inline constexpr int kMostFirTaps = 1024, kMostModalStates = 64;

struct HyenaFirStep {
    using Config = HyenaFirStepConfig;
    using Args = HyenaFirStepArgs;
    static constexpr const char *family = "conv", *name = "hyena_fir_step", *config_type = "HyenaFirStepConfig",
                                *args_type = "HyenaFirStepArgs";
    static constexpr const char* summary = "tokens of a causal FIR filter, behind the inputs in slots of a pool, in place";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    // The fewest registers first; a short filter's rows lie side by side in memory, so a thread may have one of its own.
    static constexpr std::array kConfigurations = {Config{.lanes = 1, .elements = 4},  Config{.lanes = 1, .elements = 8},
                                                   Config{.lanes = 8, .elements = 4},  Config{.lanes = 32, .elements = 4},
                                                   Config{.lanes = 32, .elements = 8}, Config{.lanes = 32, .elements = 32}};
    static_assert(kConfigurations.back().most_taps() >= kMostFirTaps);
    static std::span<const Config> configurations() { return kConfigurations; }
    static constexpr Config config_for(int taps) {
        return *std::ranges::find_if(kConfigurations, [&](const Config& config) { return taps <= config.most_taps(); });
    }
    static int threads(const Config&) { return kHyenaStepThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        const Config config = config_for(args.width + 1);
        const i64 rows = args.sequences * args.channels;
        if (rows == 0 || args.tokens == 0) return;
        launch<HyenaFirStep>(config, args, {ceil_div(rows, config.rows()), 1, 1}, target, [&](const auto&) {
            return fmt::format("{} taps, {} rows of {} lanes with {} numbers each", args.width + 1, rows, config.lanes,
                               config.elements);
        });
    }
};

struct HyenaModalStep {
    using Config = HyenaModalStepConfig;
    using Args = HyenaModalStepArgs;
    static constexpr const char *family = "conv", *name = "hyena_modal_step", *config_type = "HyenaModalStepConfig",
                                *args_type = "HyenaModalStepArgs";
    static constexpr const char* summary = "tokens of a filter in modal form, with states in slots of a pool, in place";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static constexpr std::array kConfigurations = {Config{.lanes = 4, .vectors = true}, Config{.lanes = 4, .vectors = false},
                                                   Config{.lanes = 16, .vectors = true}, Config{.lanes = 16, .vectors = false}};
    static_assert(kConfigurations.back().most_states() >= kMostModalStates);
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kHyenaStepThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, bool vectors, const Target& target) {
        const Config narrow{.lanes = 4, .vectors = vectors};
        const Config config{.lanes = args.count <= narrow.most_states() ? narrow.lanes : 16, .vectors = vectors};
        const i64 rows = args.sequences * args.channels;
        if (rows == 0 || args.tokens == 0) return;
        launch<HyenaModalStep>(config, args, {ceil_div(rows, config.rows()), 1, 1}, target, [&](const auto&) {
            return fmt::format("{} rows of {} states, {} at a time", rows, args.count, vectors ? "16 bytes" : "one number");
        });
    }
};

}  // namespace gdn_cuda::conv
