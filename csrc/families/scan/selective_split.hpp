// Into how many pieces the sequences of a selective scan are cut, so that several blocks work on each: pure functions.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>
#include <string>

#include "../../jit/text.hpp"

namespace gdn_cuda::scan {

inline constexpr int kMaxSegments = 128;  // a product of so many rounded decays is exact to 4e-6
inline constexpr i64 kMaxSegmentBytes = i64{256} << 20;

struct SplitProblem {
    i64 sequences, tokens;  // tokens: of the batch, or of a row of it
    bool packed;
    i64 states;  // of a sequence
    int parts;   // real numbers of one
};
// A kernel's launch with so many pieces. n blocks that a multiprocessor runs together take the time of n + waits blocks at its
// full rate, as few blocks leave it waiting.
struct SplitLaunch {
    i64 blocks;    // with one piece a sequence
    int resident;  // of a multiprocessor
    double waits;
    double work;  // of a token of a block, in any unit
};

// How long the multiprocessor with the most blocks takes, for each token of a block.
inline double time_of_blocks(i64 blocks, int multiprocessors, const SplitLaunch& launch) {
    const auto time = [&](i64 together) { return together == 0 ? 0. : static_cast<double>(together) + launch.waits; };
    const i64 most = ceil_div(blocks, multiprocessors);
    return launch.work * (static_cast<double>(most / launch.resident) * time(launch.resident) + time(most % launch.resident));
}

// A sequence in `parts`; packed ones, whose lengths the host does not know, as if they were alike. Those that are longer have
// more pieces.
inline Segments split_into(const SplitProblem& problem, int parts) {
    const i64 alike = problem.packed ? ceil_div(problem.tokens, std::max<i64>(problem.sequences, 1)) : problem.tokens;
    i64 length = ceil_div(ceil_div(alike, kStateChunk), parts) * kStateChunk;
    if (parts > 1) length = std::max(length, ceil_div(ceil_div(problem.tokens, kStateChunk), kMaxSegments) * kStateChunk);
    const i64 count = parts == 1 || length == 0 ? 1 : ceil_div(problem.tokens, length);
    const i64 numbers = 2 * count * problem.sequences * problem.states * problem.parts;
    if (count == 1 || numbers * static_cast<i64>(sizeof(float)) > kMaxSegmentBytes) return {};
    return {static_cast<int>(count), static_cast<int>(length)};
}

// What a cut costs.
struct SplitCost {
    double more;      // how many times as long a token takes
    double launches;  // in the unit of CutLaunch::work
};

// `launch(parts)` is the kernel's launch. `wanted`: so many pieces wherever sequences are long enough; 0: by the estimate.
template <class Launch>
Segments choose_split(const SplitProblem& problem, const Launch& launch, int multiprocessors, const SplitCost& cost,
                      int wanted) {
    if (wanted > 0) return split_into(problem, wanted);
    constexpr double kWorth = 0.9;                // the largest share of the time without a cut that is worth one
    constexpr double kBefore = 32, kOfPiece = 1;  // in tokens: what it takes to begin a piece, and to pass one before it
    const i64 alike = problem.packed ? problem.tokens / std::max<i64>(problem.sequences, 1) : problem.tokens;
    const i64 most = std::min<i64>(alike / kStateChunk, kMaxSegments);
    Segments best;
    double best_time = kWorth * static_cast<double>(alike) * time_of_blocks(launch(1).blocks, multiprocessors, launch(1));
    const SplitLaunch many = launch(kMaxSegments);
    if (cost.more * static_cast<double>(alike * many.blocks) / multiprocessors * many.work > best_time)
        return best;  // no cut is worth it, even at the full rate
    for (int parts = 2; parts <= most; ++parts) {
        const SplitLaunch cut = launch(parts);
        const Segments candidate = split_into(problem, parts);
        if (candidate.count == 1) continue;
        const i64 segments = ceil_div(alike, candidate.length);
        const double time = cost.launches + cost.more * (candidate.length + kBefore + kOfPiece * candidate.count) *
                                                time_of_blocks(cut.blocks * segments, multiprocessors, cut);
        if (time > 0.97 * best_time) continue;  // more pieces have to be worth it
        best = candidate, best_time = time;
    }
    return best;
}

inline std::string explain_split(const Segments& segments) {
    if (segments.count == 1) return "sequences are not cut";
    return fmt::format("sequences are cut into {} pieces of {} tokens", segments.count, segments.length);
}

}  // namespace gdn_cuda::scan
