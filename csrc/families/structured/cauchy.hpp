// structured/cauchy on the host: which configuration runs a problem, or whether structured/cauchy_batch does, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/cauchy/batch_plan.cuh>
#include <gdn_cuda/kernels/structured/cauchy/plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "../../launch/winners.hpp"

namespace gdn_cuda::structured {

struct CauchyProblem {
    i64 rows, shared_rows, points;
    DType io;
    bool conj;
    i64 poles;

    constexpr bool operator==(const CauchyProblem&) const = default;

    GDN_FIELDS(rows, shared_rows, points, poles, io, conj)
};

inline constexpr int kCauchyRows = 4, kCauchyThreads = 128, kCauchyTile = 64;

// Points per thread, if there are enough points: as many sums as registers hold without spilling.
constexpr int cauchy_points(DType io, int rows) {
    return io == DType::c128 && rows == kCauchyRows ? 2 : 4;
}

constexpr CauchyConfig cauchy_config(DType io, bool conj, int rows, int points, bool one_tile = false) {
    return {.io = io,
            .conj = conj,
            .rows = rows,
            .points = points,
            .threads = kCauchyThreads,
            .tile = kCauchyTile,
            .one_tile = one_tile};
}
// If one tile holds all poles, as in S4, the kernel has no sums over tiles and a sixth block fits on an SM.
inline CauchyConfig cauchy_config(const CauchyProblem& problem, int rows, int points) {
    const bool one_tile = problem.conj && problem.io == DType::c64 && problem.poles <= kCauchyTile;
    return cauchy_config(problem.io, problem.conj, rows, points, one_tile);
}
inline i64 cauchy_blocks(const CauchyProblem& problem, const CauchyConfig& config) {
    return problem.rows / config.rows * ceil_div(problem.points, config.points_per_block());
}
// Rows over the same poles use the same reciprocals. With more points per thread poles are read less often, but every SM must
// get blocks.
inline CauchyConfig cauchy_config(const CauchyProblem& problem, const jit::DeviceTraits& device) {
    const int rows = problem.shared_rows % kCauchyRows == 0 ? kCauchyRows : 1;
    const CauchyConfig many = cauchy_config(problem, rows, cauchy_points(problem.io, rows));
    return cauchy_blocks(problem, many) >= 2 * device.multiprocessors ? many : cauchy_config(problem, rows, 1);
}

inline constexpr int kMostCauchyTurns = 8;

// A block computes several tiles of points in sequence (turns) if that leaves blocks for every SM. This saves block starts, and
// loads of poles if they fit one tile, as in S4. With more tiles, poles are loaded again in every turn; the choice is the same.
inline int cauchy_turns(const CauchyProblem& problem, const CauchyConfig& config, const jit::DeviceTraits& device) {
    return static_cast<int>(
        std::clamp<i64>(cauchy_blocks(problem, config) / (64 * device.multiprocessors), 1, kMostCauchyTurns));
}

// structured/cauchy_batch computes multiples of sixteen rows of real residues over the same poles.
inline bool cauchy_in_batches(const CauchyProblem& problem) {
    const bool narrow = problem.io == DType::f32 || problem.io == DType::bf16 || problem.io == DType::f16;
    return narrow && problem.shared_rows % CauchyBatchConfig::kRows == 0;
}

// Which kernel runs a problem, with which parameters.
struct CauchyChoice {
    bool in_batches;          // structured/cauchy_batch, which has no other choices
    int rows, points, turns;  // rows per block, points per thread, tiles of points per block

    constexpr bool operator==(const CauchyChoice&) const = default;

    GDN_FIELDS(in_batches, rows, points, turns)
};
using CauchyWinners = Winners<CauchyProblem, CauchyChoice>;

inline constexpr CauchyChoice kCauchyInBatches{.in_batches = true, .rows = CauchyBatchConfig::kRows, .points = 1, .turns = 1};

inline CauchyChoice cauchy_choice(const CauchyProblem& problem, const jit::DeviceTraits& device,
                                  const CauchyWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    if (cauchy_in_batches(problem)) return kCauchyInBatches;
    const CauchyConfig config = cauchy_config(problem, device);
    return {false, config.rows, config.points, cauchy_turns(problem, config, device)};
}

// Every valid choice that may be the fastest, starting with the heuristic's.
inline std::vector<CauchyChoice> cauchy_candidates(const CauchyProblem& problem, const jit::DeviceTraits& device) {
    std::vector<CauchyChoice> all{cauchy_choice(problem, device)};
    const auto add = [&](const CauchyChoice& choice) {
        if (std::ranges::find(all, choice) == all.end()) all.push_back(choice);
    };
    if (cauchy_in_batches(problem)) add(kCauchyInBatches);
    for (const int rows : {1, kCauchyRows})
        for (const int points : {1, cauchy_points(problem.io, rows)}) {
            if (problem.shared_rows % rows != 0) continue;
            const i64 points_per_turn = cauchy_config(problem, rows, points).points_per_block();
            for (int turns = 1; turns <= kMostCauchyTurns; turns *= 2)
                if (turns == 1 || points_per_turn * turns / 2 < problem.points)  // no idle turns
                    add({false, rows, points, turns});
        }
    return all;
}

inline std::string explain_cauchy(const CauchyProblem& problem, const jit::DeviceTraits& device,
                                  const CauchyWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    if (cauchy_in_batches(problem))
        return fmt::format(
            "{} rows of {} over the same poles at a time: structured/cauchy_batch, {} blocks for {} multiprocessors",
            CauchyBatchConfig::kRows, problem.shared_rows,
            problem.rows / CauchyBatchConfig::kRows * ceil_div(problem.points, CauchyBatchConfig::kPoints),
            device.multiprocessors);
    const CauchyConfig config = cauchy_config(problem, device);
    return fmt::format(
        "{} row{} of {} over the same poles and {} point{} a thread give {} blocks for {} multiprocessors, or as many turns of "
        "blocks that take {}{}",
        config.rows, config.rows == 1 ? "" : "s", problem.shared_rows, config.points, config.points == 1 ? "" : "s",
        cauchy_blocks(problem, config), device.multiprocessors, cauchy_turns(problem, config, device),
        config.one_tile ? "; all poles fit one tile" : "");
}

inline constexpr std::array kCauchyConfigurations = [] {
    std::array<CauchyConfig, 36> all{};
    size_t n = 0;
    for (const int rows : {1, kCauchyRows})
        for (const bool many : {false, true}) {
            const auto points = [&](DType io) { return many ? cauchy_points(io, rows) : 1; };
            for (const DType io : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128})
                all[n++] = cauchy_config(io, false, rows, points(io));
            for (const DType io : {DType::c64, DType::c128}) all[n++] = cauchy_config(io, true, rows, points(io));
            all[n++] = cauchy_config(DType::c64, true, rows, points(DType::c64), true);
        }
    return all;
}();

// Interface of ../../launch/tuned.hpp and the command `tune`.
struct CauchyTuning {
    GDN_TUNING(CauchyTuning);

    using Problem = CauchyProblem;
    using Choice = CauchyChoice;
    static constexpr std::array kernels = {"structured/cauchy", "structured/cauchy_batch"};
    static constexpr auto& candidates = cauchy_candidates;
    static constexpr auto& explain = explain_cauchy;
};

struct Cauchy {
    GDN_KERNEL(Cauchy, structured, cauchy, CauchyConfig, CauchyArgs,
               "sums of residues over distances to poles, conjugate pairs as one");

    static std::span<const Config> configurations() { return kCauchyConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const CauchyProblem& problem, const CauchyChoice& choice, Args args, const Target& target) {
        if (problem.rows == 0 || problem.points == 0) return;
        const Config config = cauchy_config(problem, choice.rows, choice.points);
        args.turns = choice.turns;
        const i64 blocks = problem.rows / config.rows * ceil_div(problem.points, config.points_per_block() * args.turns);
        launch<Cauchy>(config, args, {blocks, 1, 1}, target,
                       [&](const auto& device) { return explain_cauchy(problem, device, tuned<CauchyTuning>(device)); });
    }
};

}  // namespace gdn_cuda::structured
