// How diagonal scans, forward and backward, split rows into parts, one block each.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/diagonal/inputs.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "../../launch/winners.hpp"

namespace gdn_cuda::scan {

struct DiagonalProblem {
    i64 rows, length;
    bool varying;          // a step size varies over time
    bool reverse = false;  // backward

    constexpr bool operator==(const DiagonalProblem&) const = default;

    GDN_FIELDS(rows, length, varying, reverse)
};

inline constexpr int kDiagonalThreads = 128, kDiagonalThreadsOfShort = 32;

// One warp suffices for a short row, and needs no block barrier.
constexpr int diagonal_threads(const DiagonalProblem& problem) {
    return problem.length <= kDiagonalThreadsOfShort * kDiagonalTokens ? kDiagonalThreadsOfShort : kDiagonalThreads;
}

struct DiagonalParts {
    int parts, part_tokens;

    constexpr bool operator==(const DiagonalParts&) const = default;

    GDN_FIELDS(parts, part_tokens)
};
using DiagonalWinners = Winners<DiagonalProblem, DiagonalParts>;

inline constexpr int kMostDiagonalParts = 64;  // a block applies the maps of the previous parts one by one

// Splits a row into at most `parts` parts of whole tiles, none of them empty.
inline DiagonalParts parts_of_whole_tiles(const DiagonalProblem& problem, i64 parts) {
    const i64 tile = diagonal_threads(problem) * kDiagonalTokens,
              part_tokens = ceil_div(ceil_div(problem.length, tile), parts) * tile;
    return {.parts = part_tokens == 0 ? 1 : static_cast<int>(ceil_div(problem.length, part_tokens)),
            .part_tokens = static_cast<int>(part_tokens)};
}

// Parts read their row twice, once for their maps. That pays if one block per row would leave SMs without enough loads in
// flight.
inline DiagonalParts diagonal_parts(const DiagonalProblem& problem, const jit::DeviceTraits& device,
                                    const DiagonalWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    constexpr i64 kBlocksOfSM = 4, kLeastTiles = 4;
    const i64 tiles = ceil_div(problem.length, i64{diagonal_threads(problem)} * kDiagonalTokens);
    i64 parts = 1;
    if (problem.rows > 0 && problem.rows < 2 * device.multiprocessors)
        parts = std::clamp<i64>(ceil_div(kBlocksOfSM * device.multiprocessors, problem.rows), 1,
                                std::clamp<i64>(tiles / kLeastTiles, 1, kMostDiagonalParts));
    return parts_of_whole_tiles(problem, parts);
}

// The heuristic's choice first, then the others.
inline std::vector<DiagonalParts> diagonal_candidates(const DiagonalProblem& problem, const jit::DeviceTraits& device) {
    std::vector<DiagonalParts> all{diagonal_parts(problem, device)};
    for (int parts = 1; parts <= kMostDiagonalParts; parts *= 2) {
        const DiagonalParts other = parts_of_whole_tiles(problem, parts);
        const bool fits = other.parts == parts && fits_grid({problem.rows * parts, 1, 1});
        if (fits && std::ranges::find(all, other) == all.end()) all.push_back(other);
    }
    return all;
}

inline std::string explain_diagonal_parts(const DiagonalProblem& problem, const jit::DeviceTraits& device,
                                          const DiagonalWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const DiagonalParts found = diagonal_parts(problem, device);
    const std::string rows = fmt::format("{} row{}", problem.rows, problem.rows == 1 ? "" : "s");
    if (found.parts == 1) return fmt::format("a block of {} threads for each of {}", diagonal_threads(problem), rows);
    return fmt::format("{} for {} multiprocessors: each is shared by {} blocks of {} tokens", rows, device.multiprocessors,
                       found.parts, found.part_tokens);
}

// For the command `tune`: one list of problems for forward and backward.
struct DiagonalTuning {
    GDN_TUNING(DiagonalTuning);

    using Problem = DiagonalProblem;
    using Choice = DiagonalParts;
    static constexpr std::array kernels = {"scan/diagonal_scan", "scan/diagonal_scan_parts", "scan/diagonal_scan_backward"};
    static constexpr auto& candidates = diagonal_candidates;
    static constexpr auto& explain = explain_diagonal_parts;
};

inline std::string explain_diagonal_parts_on(const DiagonalProblem& problem, const jit::DeviceTraits& device) {
    return explain_diagonal_parts(problem, device, tuned<DiagonalTuning>(device));
}

// Base of the Specs of scan/diagonal_scan and scan/diagonal_scan_backward.
template <class Spec, class OwnConfig, class OwnArgs>
struct DiagonalSpec {
    using Config = OwnConfig;
    using Args = OwnArgs;

    static constexpr std::array kConfigurations = {Config{kDiagonalThreads, false}, Config{kDiagonalThreads, true},
                                                   Config{kDiagonalThreadsOfShort, false},
                                                   Config{kDiagonalThreadsOfShort, true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // static shared memory

    static void run(const DiagonalProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0) return;
        launch<Spec>(Config{.threads = diagonal_threads(problem), .varying = problem.varying}, args,
                     {problem.rows * args.inputs.parts, 1, 1}, target,
                     [&](const auto& device) { return explain_diagonal_parts_on(problem, device); });
    }
};

}  // namespace gdn_cuda::scan
