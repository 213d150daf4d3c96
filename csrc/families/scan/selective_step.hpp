// scan/selective_step, scan/selective_step_direct and scan/selective_step_tied on the host: which of them runs a problem, its
// configuration, and the launch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <gdn_cuda/kernels/scan/selective_step/tied_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "../../launch/winners.hpp"
#include "selective_step_codes.hpp"

namespace gdn_cuda::scan {

struct SelectiveStepProblem {
    i64 sequences, tokens;
    int groups, group_rows;
    int columns;  // N
    DType state;
    bool aligned;       // rows consist of 16-byte units and are aligned to them
    bool near;          // no tensor but the states spans 2^31 bytes or more, and no state but the last is stored
    bool plain;         // SelectiveStepArgs::plain
    bool tied = false;  // A has one value for a row, and the discretization is mamba or dirac

    constexpr bool operator==(const SelectiveStepProblem&) const = default;

    GDN_FIELDS(sequences, tokens, groups, group_rows, columns, state, aligned, near, plain, tied)

    bool may_be_direct() const { return tokens == 1 && aligned && near && state != DType::i8; }
    bool may_be_tied() const {
        return tokens == 1 && aligned && tied && !is_complex(state) && (columns == 64 || columns == 128 || columns == 256);
    }
};

struct SelectiveStepChoice {
    SelectiveStepConfig config;
    int lanes;            // per row
    int block_sequences;  // sequences per block
    bool direct = false;  // scan/selective_step_direct, with one sequence per block
    int row_steps = 0;    // row steps per block of scan/selective_step_tied, with one sequence per block; 0: another kernel

    int rows() const { return SelectiveStepConfig::threads() / lanes; }

    constexpr bool operator==(const SelectiveStepChoice&) const = default;

    GDN_FIELDS(lanes, block_sequences, direct, row_steps)  // the problem determines the configuration
};
using SelectiveStepWinners = Winners<SelectiveStepProblem, SelectiveStepChoice>;

// Long rows have more elements per lane, which amortises a lane's work per row; a row's lanes still access at least 64
// contiguous bytes.
constexpr SelectiveStepConfig selective_step_config(DType state, bool aligned, int columns) {
    if (state == DType::i8) return TiedStepConfig{state, columns}.row();
    if (!aligned) return {.state = state, .vector = 1, .vectors = kMaxStates / 32};
    const int vector = 16 / bytes_of(state);
    return {.state = state, .vector = vector, .vectors = columns < 16 * vector ? 1 : bytes_of(state) == 2 ? 2 : 4};
}

// Lanes of a row. If a lane has several vectors of a row, none of them is empty.
constexpr int selective_step_lanes(const SelectiveStepConfig& config, int columns) {
    const auto units = static_cast<unsigned>(ceil_div(columns, config.aligned() ? config.elements() : 1));
    return std::clamp(static_cast<int>(std::bit_ceil(units)), config.fewest_lanes(), 32);
}

inline Blocks selective_step_blocks(const SelectiveStepProblem& problem, const SelectiveStepChoice& choice) {
    const i64 rows = choice.rows() * std::max(choice.row_steps, 1);
    return {ceil_div(problem.group_rows, rows), problem.groups, ceil_div(problem.sequences, choice.block_sequences)};
}

inline i64 selective_step_blocks_in_all(const SelectiveStepProblem& problem, const SelectiveStepChoice& choice) {
    const Blocks blocks = selective_step_blocks(problem, choice);
    return blocks[0] * blocks[1] * blocks[2];
}

// Up to how many blocks per SM scan/selective_step_direct is the faster kernel, as measured. More for plain calls, which take
// few instructions; fewer for 16-bit states, which have half the bytes for as many instructions.
constexpr i64 most_direct_blocks(const SelectiveStepProblem& problem, const SelectiveStepConfig& config) {
    if (!problem.plain) return 10;
    if (bytes_of(problem.state) == 2) return 40;
    return config.vectors == 1 ? 80 : 120;
}

// Most sequences per block of scan/selective_step. With long 16-bit rows, a full GPU is up to 12 % faster with fewer.
constexpr int most_block_sequences(const SelectiveStepConfig& config, i64 blocks_of_one, int multiprocessors) {
    constexpr int kLongRows = 8;
    constexpr i64 kFull = 30;  // blocks per SM, as measured
    const bool full = blocks_of_one >= kFull * kLongRows * multiprocessors;
    return bytes_of(config.state) == 2 && config.vectors > 1 && full ? kLongRows : SelectiveStepConfig::most_sequences();
}

// Row steps per block of scan/selective_step_tied that leave every SM a few blocks, as in gdn/decode; 0 if there are too few
// rows.
inline int tied_row_steps(const SelectiveStepProblem& problem, const SelectiveStepChoice& choice, int multiprocessors) {
    constexpr i64 kBlocksPerMultiprocessor = 3;
    if (!problem.may_be_tied()) return 0;
    SelectiveStepChoice tied = choice;
    for (tied.row_steps = std::min(8, choice.lanes); tied.row_steps > 1; tied.row_steps /= 2) {
        const bool fills_steps = (tied.row_steps - 1) * choice.rows() < problem.group_rows;
        if (fills_steps && fits_grid(selective_step_blocks(problem, tied)) &&
            selective_step_blocks_in_all(problem, tied) >= kBlocksPerMultiprocessor * multiprocessors)
            return tied.row_steps;
    }
    return problem.state == DType::i8 ? 1 : 0;  // no other kernel has codes
}

// Many rows with one value of A each go to the kernel that is made for them. With few blocks latency is the bound, so the
// direct kernel runs. Otherwise a block has as many sequences as still fill the
// GPU once: a block loads A once for all of them, and loads of later sequences overlap the computation of earlier ones.
inline SelectiveStepChoice selective_step_choice(const SelectiveStepProblem& problem, const jit::DeviceTraits& device,
                                                 const SelectiveStepWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    constexpr i64 kBlocks = 7;  // that fill two SMs
    const SelectiveStepConfig config = selective_step_config(problem.state, problem.aligned, problem.columns);
    SelectiveStepChoice choice{config, selective_step_lanes(config, problem.columns), 1};
    if (problem.tokens > 1) return choice;
    choice.row_steps = tied_row_steps(problem, choice, device.multiprocessors);
    if (choice.row_steps > 0) return choice;
    choice.direct =
        problem.may_be_direct() && fits_grid(selective_step_blocks(problem, choice)) &&
        selective_step_blocks_in_all(problem, choice) <= most_direct_blocks(problem, config) * device.multiprocessors;
    if (choice.direct) return choice;
    const i64 blocks_of_one = selective_step_blocks_in_all(problem, choice);
    for (int sequences = most_block_sequences(config, blocks_of_one, device.multiprocessors); sequences > 1; sequences /= 2) {
        const i64 blocks =
            ceil_div(problem.group_rows, choice.rows()) * problem.groups * ceil_div(problem.sequences, sequences);
        if (sequences > problem.sequences || 2 * blocks < kBlocks * device.multiprocessors) continue;
        choice.block_sequences = sequences;
        break;
    }
    return choice;
}

// Most sequences that fit a grid with the fewest sequences per block.
constexpr i64 most_sequences(i64 tokens) {
    constexpr int kFewestItems = 4;
    return kMostBlocks[2] * (tokens > 1 ? 1 : kFewestItems);
}

// The heuristic's choice first, then scan/selective_step with other counts of sequences per block, the direct kernel, and
// scan/selective_step_tied.
inline std::vector<SelectiveStepChoice> selective_step_candidates(const SelectiveStepProblem& problem,
                                                                  const jit::DeviceTraits& device) {
    const SelectiveStepChoice own = selective_step_choice(problem, device);
    std::vector<SelectiveStepChoice> all{own};
    if (problem.tokens > 1) return all;
    const int most_sequences = problem.state == DType::i8 ? 0 : SelectiveStepConfig::most_sequences();
    for (int sequences = 1; sequences <= most_sequences; sequences *= 2) {
        SelectiveStepChoice other = own;
        other.block_sequences = sequences;
        other.direct = false;
        other.row_steps = 0;
        if (other != own && sequences <= problem.sequences && fits_grid(selective_step_blocks(problem, other)))
            all.push_back(other);
    }
    SelectiveStepChoice direct = own;
    direct.block_sequences = 1, direct.direct = true, direct.row_steps = 0;
    if (direct != own && problem.may_be_direct() && fits_grid(selective_step_blocks(problem, direct))) all.push_back(direct);
    if (!problem.may_be_tied()) return all;
    for (int steps = 1; steps <= std::min(8, own.lanes); steps *= 2) {
        SelectiveStepChoice tied = own;
        tied.block_sequences = 1, tied.direct = false, tied.row_steps = steps;
        if (tied != own && fits_grid(selective_step_blocks(problem, tied))) all.push_back(tied);
    }
    return all;
}

// scan/selective_step_tokens has the configurations of long rows alone. A short row has the lanes that it has in the other
// kernels, and so is summed in the same order.
inline SelectiveStepChoice selective_step_tokens_choice(const SelectiveStepProblem& problem) {
    const SelectiveStepConfig config = selective_step_config(problem.state, problem.aligned, kMaxStates);
    const SelectiveStepConfig own = selective_step_config(problem.state, problem.aligned, problem.columns);
    return {config, std::max(selective_step_lanes(own, problem.columns), config.fewest_lanes()), 1};
}

// How the lanes of a row access it.
inline std::string access_of(const SelectiveStepChoice& choice) {
    return choice.config.aligned()
               ? fmt::format("{} bytes of a row a lane, {} lanes a row", 16 * choice.config.vectors, choice.lanes)
               : fmt::format("rows not in whole 16-byte units: one element a lane, {} lanes a row", choice.lanes);
}

inline std::string explain_selective_step(const SelectiveStepProblem& problem, const jit::DeviceTraits& device,
                                          const SelectiveStepWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const SelectiveStepChoice choice = selective_step_choice(problem, device);
    const std::string access = access_of(choice);
    if (problem.tokens > 1) return fmt::format("{}; {} tokens of one sequence a block", access, problem.tokens);
    if (choice.row_steps > 0)
        return fmt::format("{}; one value of A a row, {} row steps a block: bytes count", access, choice.row_steps);
    if (choice.direct) return fmt::format("{}; few blocks, all loads at once: latency counts", access);
    return choice.block_sequences > 1
               ? fmt::format("{}; {} sequences a block: bytes count", access, choice.block_sequences)
               : fmt::format("{}; one sequence a block for {} multiprocessors: latency counts", access, device.multiprocessors);
}

struct SelectiveStepTuning {
    GDN_TUNING(SelectiveStepTuning);

    using Problem = SelectiveStepProblem;
    using Choice = SelectiveStepChoice;
    static constexpr std::array kernels = {"scan/selective_step", "scan/selective_step_direct", "scan/selective_step_tied"};
    static constexpr auto& candidates = selective_step_candidates;
    static constexpr auto& explain = explain_selective_step;
};

inline constexpr std::array kAlignedSteps = {
    selective_step_config(DType::f32, true, 16),  selective_step_config(DType::f32, true, 256),
    selective_step_config(DType::bf16, true, 16), selective_step_config(DType::bf16, true, 256),
    selective_step_config(DType::f16, true, 16),  selective_step_config(DType::f16, true, 256),
    selective_step_config(DType::c64, true, 16),  selective_step_config(DType::c64, true, 256)};
inline constexpr std::array kUnalignedSteps = {
    selective_step_config(DType::f32, false, 1), selective_step_config(DType::bf16, false, 1),
    selective_step_config(DType::f16, false, 1), selective_step_config(DType::c64, false, 1)};

struct SelectiveStepDirect {
    GDN_KERNEL(SelectiveStepDirect, scan, selective_step_direct, SelectiveStepConfig, SelectiveStepArgs,
               "a token of each of few sequences of a selective scan, states of a pool in place");

    static std::span<const Config> configurations() { return kAlignedSteps; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config&) { return 0; }
};

inline constexpr std::array kTiedSteps = [] {
    std::array<TiedStepConfig, 12> all{};
    auto next = all.begin();
    for (const DType state : {DType::f32, DType::bf16, DType::f16, DType::i8})
        for (const int columns : {64, 128, 256}) *next++ = {state, columns};
    return all;
}();

struct SelectiveStepTied {
    GDN_KERNEL(SelectiveStepTied, scan, selective_step_tied, TiedStepConfig, SelectiveStepArgs,
               "a token of every sequence of Mamba-2's scan, states of a pool in place", .starts_early = true);

    static std::span<const Config> configurations() { return kTiedSteps; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kTiedSteps, TiedStepSharedPlan>(config); }
};

inline constexpr std::array kTokenSteps = [] {
    std::array<SelectiveStepConfig, 8> all{};
    auto next = all.begin();
    for (const bool aligned : {true, false})
        for (const DType state : {DType::f32, DType::bf16, DType::f16, DType::c64})
            *next++ = selective_step_config(state, aligned, kMaxStates);
    return all;
}();

struct SelectiveStepTokens {
    GDN_KERNEL(SelectiveStepTokens, scan, selective_step_tokens, SelectiveStepConfig, SelectiveStepArgs,
               "tokens of every sequence of a selective scan, packed or in trees, and the last state beside every one");

    static std::span<const Config> configurations() { return kTokenSteps; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kTokenSteps, SelectiveStepSharedPlan>(config); }

    static void run(const SelectiveStepProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.groups == 0 || problem.group_rows == 0) return;
        const SelectiveStepChoice choice = selective_step_tokens_choice(problem);
        args.lane_bits = std::countr_zero(static_cast<unsigned>(choice.lanes));
        args.block_sequences = 1;
        launch<SelectiveStepTokens>(choice.config, args, selective_step_blocks(problem, choice), target, [&](const auto&) {
            if (args.cu_seqlens.data != nullptr) return fmt::format("{}; packed, one sequence a block", access_of(choice));
            return fmt::format("{}; {} tokens of one sequence a block", access_of(choice), args.tokens);
        });
    }
};

struct SelectiveStep {
    GDN_KERNEL(SelectiveStep, scan, selective_step, SelectiveStepConfig, SelectiveStepArgs,
               "a token or a few of every sequence of a selective scan, states of a pool in place");

    static constexpr auto kConfigurations = [] {
        std::array<Config, kAlignedSteps.size() + kUnalignedSteps.size()> all{};
        std::ranges::copy(kUnalignedSteps, std::ranges::copy(kAlignedSteps, all.begin()).out);
        return all;
    }();
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return Config::threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kConfigurations, SelectiveStepSharedPlan>(config); }

    static void run(const SelectiveStepProblem& problem, Args args, const Target& target) {
        if (problem.sequences == 0 || problem.tokens == 0 || problem.groups == 0 || problem.group_rows == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const SelectiveStepChoice choice = selective_step_choice(problem, device, tuned<SelectiveStepTuning>(device));
        args.lane_bits = std::countr_zero(static_cast<unsigned>(choice.lanes));
        args.block_sequences = choice.block_sequences;
        const auto explanation = [&](const auto& traits) {
            return explain_selective_step(problem, traits, tuned<SelectiveStepTuning>(traits));
        };
        const Blocks blocks = selective_step_blocks(problem, choice);
        args.row_steps = choice.row_steps;
        if (SelectiveStepCodes::takes(args, device.multiprocessors))
            SelectiveStepCodes::run(args, target);
        else if (choice.row_steps > 0)
            launch<SelectiveStepTied>({problem.state, problem.columns}, args, blocks, target, explanation);
        else if (choice.direct)
            launch<SelectiveStepDirect>(choice.config, args, blocks, target, explanation);
        else
            launch<SelectiveStep>(choice.config, args, blocks, target, explanation);
    }
};

}  // namespace gdn_cuda::scan
