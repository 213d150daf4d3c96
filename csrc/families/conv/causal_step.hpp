// conv/causal_step, conv/causal_step_staged and conv/causal_step_any on the host: which of them runs, its configuration, and
// the launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/conv/causal_step/plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"

namespace gdn_cuda::conv {

inline const char* word_of(StateWindow window) {
    switch (window) {
        case StateWindow::last:
            return "conv::StateWindow::last";
        case StateWindow::circular:
            return "conv::StateWindow::circular";
        case StateWindow::verify:
            return "conv::StateWindow::verify";
    }
    return "?";
}

struct CausalStepProblem {
    i64 sequences, channels;
    int width, columns;
    DType io, state;
    StateWindow window;
    bool vectors;           // channels are contiguous in x and out, in aligned 16-byte vectors
    bool columns_vectors;   // the same holds for each column of the state
    bool channels_vectors;  // a channel's columns are contiguous in the state, next to those of the next channel, from aligned
                            // addresses on

    constexpr bool operator==(const CausalStepProblem&) const = default;

    GDN_FIELDS(sequences, channels, width, columns, io, state, window, vectors, columns_vectors, channels_vectors)
};

enum class CausalStepKernel { vectors, staged, any };

inline constexpr std::array kCausalStepConfigurations = [] {
    struct Types {
        DType io, state;
    };
    constexpr std::array kTypes = {Types{DType::bf16, DType::bf16}, Types{DType::bf16, DType::f32},
                                   Types{DType::f16, DType::f16}, Types{DType::f16, DType::f32}, Types{DType::f32, DType::f32}};
    std::array<CausalStepConfig, 2 * kTypes.size()> all{};
    for (size_t i = 0; i < all.size(); ++i)
        all[i] = {.io = kTypes[i / 2].io, .state = kTypes[i / 2].state, .width = i % 2 == 0 ? 4 : 3};
    return all;
}();
// States as long as the history, or one column longer, as those of transformers' caches.
inline constexpr std::array kCausalStepStagedConfigurations = [] {
    constexpr std::array kTypes = {DType::bf16, DType::f16, DType::f32};
    std::array<CausalStepStagedConfig, 4 * kTypes.size()> all{};
    for (size_t i = 0; i < all.size(); ++i) {
        const int width = i % 4 < 2 ? 4 : 3;
        all[i] = {.io = kTypes[i / 4], .width = width, .columns = width - 1 + static_cast<int>(i % 2)};
    }
    return all;
}();
inline constexpr CausalStepAnyConfig kCausalStepAny = {.threads = kStepThreads};

constexpr CausalStepConfig causal_step_config(const CausalStepProblem& problem) {
    return {.io = problem.io, .state = problem.state, .width = problem.width};
}
constexpr CausalStepStagedConfig causal_step_staged_config(const CausalStepProblem& problem) {
    return {.io = problem.io, .width = problem.width, .columns = problem.columns};
}

struct CausalStepChoice {
    CausalStepKernel kernel;
    int block_sequences;

    constexpr bool operator==(const CausalStepChoice&) const = default;

    GDN_FIELDS(block_sequences)  // the problem determines the kernel
};
using CausalStepWinners = Winners<CausalStepProblem, CausalStepChoice>;

inline int causal_step_block_channels(const CausalStepProblem& problem, CausalStepKernel kernel) {
    return kernel == CausalStepKernel::any ? kCausalStepAny.threads : kStepThreads * 16 / bytes_of(problem.state);
}

inline Blocks causal_step_blocks(const CausalStepProblem& problem, const CausalStepChoice& choice) {
    return {ceil_div(problem.sequences, choice.block_sequences),
            ceil_div(problem.channels, causal_step_block_channels(problem, choice.kernel)), 1};
}

// As many sequences per block as still leave enough blocks for every SM: a block loads taps once for all its sequences, and
// prefetches the next sequence while one is computed.
inline CausalStepChoice causal_step_choice(const CausalStepProblem& problem, const jit::DeviceTraits& device,
                                           const CausalStepWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    const auto has = [](const auto& all, const auto& config) { return std::ranges::find(all, config) != all.end(); };
    const bool vectors =
        problem.vectors && problem.columns_vectors && has(kCausalStepConfigurations, causal_step_config(problem));
    const bool staged = problem.vectors && problem.channels_vectors && problem.io == problem.state &&
                        problem.window == StateWindow::last &&
                        has(kCausalStepStagedConfigurations, causal_step_staged_config(problem));
    if (!vectors && !staged) return {CausalStepKernel::any, 1};
    const CausalStepKernel kernel = vectors ? CausalStepKernel::vectors : CausalStepKernel::staged;
    const i64 one_each = problem.sequences * ceil_div(problem.channels, causal_step_block_channels(problem, kernel));
    const i64 together = std::max(device.multiprocessors, 1) * i64{kStepBlocks};
    return {kernel, static_cast<int>(std::clamp(ceil_div(one_each, together), i64{1}, std::max(problem.sequences, i64{1})))};
}

// The heuristic's choice first, then other numbers of sequences a block.
inline std::vector<CausalStepChoice> causal_step_candidates(const CausalStepProblem& problem, const jit::DeviceTraits& device) {
    constexpr int kMost = 32;
    if (problem.sequences <= 0 || problem.channels <= 0) return {};
    std::vector<CausalStepChoice> all{causal_step_choice(problem, device)};
    if (all.front().kernel == CausalStepKernel::any) return all;
    for (int sequences = 1; sequences <= std::min<i64>(kMost, problem.sequences); sequences *= 2)
        if (const CausalStepChoice other{all.front().kernel, sequences}; other != all.front()) all.push_back(other);
    return all;
}

inline std::string explain_causal_step(const CausalStepProblem& problem, const jit::DeviceTraits& device,
                                       const CausalStepWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const CausalStepChoice choice = causal_step_choice(problem, device);
    const std::string shared =
        fmt::format("{} sequences a block on {} multiprocessors", choice.block_sequences, device.multiprocessors);
    switch (choice.kernel) {
        case CausalStepKernel::vectors:
            return fmt::format("columns of the state are vectors of channels; {}", shared);
        case CausalStepKernel::staged:
            return fmt::format("{} columns of a channel are contiguous: through shared memory; {}", problem.columns, shared);
        case CausalStepKernel::any:
            return fmt::format("a thread a channel: {}", !problem.vectors ? "x or out are not in 16-byte vectors of channels"
                                                         : problem.width != 3 && problem.width != 4
                                                             ? fmt::format("W = {}", problem.width)
                                                             : std::string("the state is not in 16-byte units, or of a type, "
                                                                           "a length or a window without a kernel of its own"));
    }
    return {};
}

struct CausalStepTuning {
    GDN_TUNING(CausalStepTuning);

    using Problem = CausalStepProblem;
    using Choice = CausalStepChoice;
    static constexpr std::array kernels = {"conv/causal_step", "conv/causal_step_staged"};
    static constexpr auto& candidates = causal_step_candidates;
    static constexpr auto& explain = explain_causal_step;
};

struct CausalStepAny {
    GDN_KERNEL(CausalStepAny, conv, causal_step_any, CausalStepAnyConfig, CausalStepArgs,
               "tokens through a causal convolution of any width, states of any strides in place");

    static constexpr std::array kConfigurations = {kCausalStepAny};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) { return plan_bytes<kConfigurations, CausalStepAnySharedPlan>(config); }
};

struct CausalStepStaged {
    GDN_KERNEL(CausalStepStaged, conv, causal_step_staged, CausalStepStagedConfig, CausalStepArgs,
               "the same where a channel's columns are contiguous: staged in shared memory", .starts_early = true);

    static std::span<const Config> configurations() { return kCausalStepStagedConfigurations; }
    static int threads(const Config&) { return kStepThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kCausalStepStagedConfigurations, CausalStepStagedSharedPlan>(config);
    }
};

struct CausalStep {
    GDN_KERNEL(CausalStep, conv, causal_step, CausalStepConfig, CausalStepArgs,
               "tokens of every sequence through a causal convolution, states of a pool in place", .starts_early = true);

    static std::span<const Config> configurations() { return kCausalStepConfigurations; }
    static int threads(const Config&) { return kStepThreads; }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const CausalStepProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.channels == 0 || args.tokens == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const CausalStepChoice choice = causal_step_choice(problem, device, tuned<CausalStepTuning>(device));
        args.block_sequences = choice.block_sequences;
        const Blocks blocks = causal_step_blocks(problem, choice);
        const auto why = [&](const auto& on) { return explain_causal_step(problem, on, tuned<CausalStepTuning>(on)); };
        if (choice.kernel == CausalStepKernel::vectors)
            launch<CausalStep>(causal_step_config(problem), args, blocks, target, why);
        else if (choice.kernel == CausalStepKernel::staged)
            launch<CausalStepStaged>(causal_step_staged_config(problem), args, blocks, target, why);
        else
            launch<CausalStepAny>(kCausalStepAny, args, blocks, target, why);
    }
};

}  // namespace gdn_cuda::conv
