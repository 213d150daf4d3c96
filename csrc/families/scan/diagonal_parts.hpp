// How a diagonal scan is shared out among blocks, forward and backward.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/scan/diagonal_inputs.cuh>
#include <string>

#include "../../jit/device.hpp"
#include "../../jit/text.hpp"

namespace gdn_cuda::scan {

struct DiagonalProblem {
    i64 rows, length;
    bool varying;  // a step size varies over time
};

inline constexpr int kDiagonalThreads = 128, kDiagonalThreadsOfShort = 32;

// A warp is enough for a short row, and needs no other to wait for.
constexpr int diagonal_threads(const DiagonalProblem& problem) {
    return problem.length <= kDiagonalThreadsOfShort * kDiagonalTokens ? kDiagonalThreadsOfShort : kDiagonalThreads;
}

struct DiagonalParts {
    int parts, part_tokens;
};
// Several blocks a row read it twice, once for the map of each part: worth it where a block a row would leave multiprocessors
// without enough loads in flight.
inline DiagonalParts diagonal_parts(const DiagonalProblem& problem, const jit::DeviceTraits& device) {
    constexpr i64 kBlocksOfSM = 4, kLeastTiles = 4, kMostParts = 64;  // a block goes through the maps before it one by one
    const i64 tile = diagonal_threads(problem) * kDiagonalTokens, tiles = ceil_div(problem.length, tile);
    i64 parts = 1;
    if (problem.rows > 0 && problem.rows < 2 * device.multiprocessors)
        parts = std::clamp<i64>(ceil_div(kBlocksOfSM * device.multiprocessors, problem.rows), 1,
                                std::clamp<i64>(tiles / kLeastTiles, 1, kMostParts));
    const i64 of_part = ceil_div(tiles, parts) * tile;
    return {.parts = of_part == 0 ? 1 : static_cast<int>(ceil_div(problem.length, of_part)),
            .part_tokens = static_cast<int>(of_part)};
}

inline std::string explain_diagonal_parts(const DiagonalProblem& problem, const jit::DeviceTraits& device) {
    const DiagonalParts found = diagonal_parts(problem, device);
    const std::string rows = fmt::format("{} row{}", problem.rows, problem.rows == 1 ? "" : "s");
    if (found.parts == 1) return fmt::format("a block of {} threads for each of {}", diagonal_threads(problem), rows);
    return fmt::format("{} for {} multiprocessors: each is shared by {} blocks of {} tokens", rows, device.multiprocessors,
                       found.parts, found.part_tokens);
}

}  // namespace gdn_cuda::scan
