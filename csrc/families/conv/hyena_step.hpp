// conv/hyena_fir_step and conv/hyena_modal_step on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/hyena_step/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::conv {

inline constexpr int kMostFirTaps = 1024, kMostModalStates = 64;

// A grid of blocks of `channels` channels; each processes as many sequences as still fill the GPU.
template <class Args>
Blocks hyena_step_blocks(Args& args, int rows, const jit::DeviceTraits& device) {
    constexpr i64 kFull = 12, kMost = 16;  // blocks per SM, twice what it holds; sequences per block
    const i64 channel_sums = ceil_div(args.channels, rows);
    const i64 segment = args.sequences * channel_sums / (kFull * std::max(1, device.multiprocessors));
    args.block_sequences = static_cast<int>(std::clamp<i64>(segment, 1, kMost));
    return {channel_sums * ceil_div(args.sequences, args.block_sequences), 1, 1};
}

// The same as one wave of `resident` blocks per SM.
template <class Args>
Blocks hyena_step_wave(Args& args, int rows, int resident, const jit::DeviceTraits& device) {
    const i64 channel_sums = ceil_div(args.channels, rows);
    const i64 turns = std::max<i64>(1, std::max(1, device.multiprocessors) * i64{resident} / channel_sums);
    args.block_sequences = static_cast<int>(ceil_div(args.sequences, turns));
    return {channel_sums * ceil_div(args.sequences, args.block_sequences), 1, 1};
}

// Whether the states of adjacent channels are one run of aligned 16-byte units of fp32.
inline bool has_state_runs(const HyenaFirStepArgs& args) {
    constexpr int kUnit = HyenaStateUnit::kValues;
    return args.state_type == DType::f32 && args.width > 0 && (args.width == 1 || args.state_position == 1) &&
           (args.channels == 1 || args.state_channel == args.width) && args.channels * i64{args.width} % kUnit == 0 &&
           args.state_slot % kUnit == 0 && reinterpret_cast<uintptr_t>(args.states) % sizeof(HyenaStateUnit) == 0;
}

struct HyenaFirStaged {
    GDN_KERNEL(HyenaFirStaged, conv, hyena_fir_step_staged, HyenaFirStagedConfig, HyenaFirStepArgs,
               "the same where states of adjacent channels are contiguous: through shared memory");

    static constexpr std::array kConfigurations = [] {
        constexpr auto of = [](DType io) {
            return std::array{Config{.io = io, .lanes = 1, .elements = 4, .certain = 1, .rows = 64},
                              Config{.io = io, .lanes = 1, .elements = 8, .certain = 5, .rows = 64},
                              Config{.io = io, .lanes = 32, .elements = 1, .certain = 0, .rows = 8},
                              Config{.io = io, .lanes = 32, .elements = 2, .certain = 1, .rows = 4},
                              Config{.io = io, .lanes = 32, .elements = 3, .certain = 2, .rows = 4},
                              Config{.io = io, .lanes = 32, .elements = 4, .certain = 3, .rows = 4}};
        };
        constexpr std::array kTypes = {DType::bf16, DType::f16, DType::f32};
        std::array<Config, kTypes.size() * of(DType::f32).size()> all{};
        for (size_t i = 0; i < all.size(); ++i) all[i] = of(kTypes[i % kTypes.size()])[i / kTypes.size()];
        return all;
    }();
    static std::span<const Config> configurations() { return kConfigurations; }
    static constexpr const Config* config_for(int taps, DType io) {
        const auto found = std::ranges::find_if(
            kConfigurations, [&](const Config& config) { return taps <= config.most_taps() && config.io == io; });
        return found == kConfigurations.end() ? nullptr : &*found;
    }
    static int threads(const Config&) { return kHyenaStepThreads; }
    static int shared_bytes(const Config& config) { return plan_bytes<kConfigurations, HyenaFirStagedSharedPlan>(config); }
};

struct HyenaFirStep {
    GDN_KERNEL(HyenaFirStep, conv, hyena_fir_step, HyenaFirStepConfig, HyenaFirStepArgs,
               "tokens of a causal FIR filter, after the inputs in slots of a pool, in place");

    // Ordered by registers. A short filter's rows are adjacent in memory, so a thread may have a row of its own.
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

    static void run(Args args, const Target& target) {
        const i64 rows = args.sequences * args.channels;
        if (rows == 0 || args.tokens == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const HyenaFirStagedConfig* staged = HyenaFirStaged::config_for(args.width + 1, args.u.values.type);
        if (staged != nullptr && has_state_runs(args)) {
            const Blocks blocks = hyena_step_wave(args, staged->block_rows(), staged->blocks(), device);
            return launch<HyenaFirStaged>(*staged, args, blocks, target, [&](const auto&) {
                return fmt::format("{} taps, runs of {} rows through shared memory, {} sequences a block", args.width + 1,
                                   staged->rows, args.block_sequences);
            });
        }
        const Config config = config_for(args.width + 1);
        const Blocks blocks = hyena_step_blocks(args, config.rows(), device);
        launch<HyenaFirStep>(config, args, blocks, target, [&](const auto&) {
            return fmt::format("{} taps, {} rows of {} lanes with {} values each, {} sequences a block", args.width + 1, rows,
                               config.lanes, config.elements, args.block_sequences);
        });
    }
};

struct HyenaModalStep {
    GDN_KERNEL(HyenaModalStep, conv, hyena_modal_step, HyenaModalStepConfig, HyenaModalStepArgs,
               "tokens of a filter in modal form, with states in slots of a pool, in place");

    static constexpr std::array kConfigurations = {
        Config{.vectors = false, .io = DType::f32, .lanes = 4},  Config{.vectors = true, .io = DType::bf16, .lanes = 4},
        Config{.vectors = true, .io = DType::f16, .lanes = 4},   Config{.vectors = true, .io = DType::f32, .lanes = 4},
        Config{.vectors = false, .io = DType::f32, .lanes = 16}, Config{.vectors = true, .io = DType::bf16, .lanes = 16},
        Config{.vectors = true, .io = DType::f16, .lanes = 16},  Config{.vectors = true, .io = DType::f32, .lanes = 16}};
    static_assert(kConfigurations.back().most_states() >= kMostModalStates);
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kHyenaStepThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static constexpr Config config_for(int states, bool vectors, DType io) {
        return *std::ranges::find_if(kConfigurations, [&](const Config& config) {
            return states <= config.most_states() && config.vectors == vectors && (!vectors || config.io == io);
        });
    }

    // `vectors`: states, residues and poles are rows of aligned 16-byte units of fp32.
    static void run(Args args, bool vectors, const Target& target) {
        const DType io = args.out.values.type;
        vectors = vectors && args.x2.values.type == io && args.x1.values.type == io && args.v.values.type == io;
        const Config config = config_for(args.count, vectors, io);
        const i64 rows = args.sequences * args.channels;
        if (rows == 0 || args.tokens == 0) return;
        const Blocks blocks = hyena_step_wave(args, config.rows(), config.blocks(), jit::device_traits(target.ordinal));
        launch<HyenaModalStep>(config, args, blocks, target, [&](const auto&) {
            return fmt::format("{} rows of {} states, {} at a time, {} sequences a block", rows, args.count,
                               vectors ? "16 bytes" : "one number", args.block_sequences);
        });
    }
};

}  // namespace gdn_cuda::conv
