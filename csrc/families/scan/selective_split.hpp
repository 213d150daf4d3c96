// Into how many segments a selective scan splits its sequences, so that several blocks work on each: pure functions.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>
#include <string>

#include "../../jit/text.hpp"

namespace gdn_cuda::scan {

inline constexpr int kMaxSegments = 128;  // a product of 128 rounded decays has an error of 4e-6
inline constexpr i64 kMaxSegmentBytes = i64{256} << 20;

struct SplitProblem {
    i64 sequences, tokens;  // tokens: of a row of the batch
    bool packed;
    i64 states;  // per sequence
    int parts;   // floats per state
};
// A launch of the kernel. n blocks on one SM take as long as n + waits blocks would at its full rate, since few blocks do not
// hide latencies.
struct SplitLaunch {
    i64 blocks;    // with one segment per sequence
    int resident;  // blocks per SM
    double waits;
    double work;  // for a token of a block, in any unit
};

// How long the SM with the most blocks takes for one token of each of its blocks.
inline double time_of_blocks(i64 blocks, int multiprocessors, const SplitLaunch& launch) {
    const auto time = [&](i64 together) { return together == 0 ? 0. : static_cast<double>(together) + launch.waits; };
    const i64 most = ceil_div(blocks, multiprocessors);
    return launch.work * (static_cast<double>(most / launch.resident) * time(launch.resident) + time(most % launch.resident));
}

// Splits a sequence into `parts` segments. The host does not know the lengths of packed sequences and assumes equal ones;
// longer sequences then have more segments.
inline Segments split_into(const SplitProblem& problem, int parts) {
    const i64 average = problem.packed ? ceil_div(problem.tokens, std::max<i64>(problem.sequences, 1)) : problem.tokens;
    i64 length = ceil_div(ceil_div(average, kStateChunk), parts) * kStateChunk;
    if (parts > 1) length = std::max(length, ceil_div(ceil_div(problem.tokens, kStateChunk), kMaxSegments) * kStateChunk);
    const i64 count = parts == 1 || length == 0 ? 1 : ceil_div(problem.tokens, length);
    const i64 floats = 2 * count * problem.sequences * problem.states * problem.parts;
    if (count == 1 || floats * static_cast<i64>(sizeof(float)) > kMaxSegmentBytes) return {};
    return {static_cast<int>(count), static_cast<int>(length)};
}

// The cost of splitting.
struct SplitCost {
    double more;      // factor on the time of a token
    double launches;  // additional launches, in the unit of SplitLaunch::work
};

// `launch(parts)` returns the kernel's launch with so many segments. `wanted`: segments to split long enough sequences into; 0:
// choose by estimated time.
template <class Launch>
Segments choose_split(const SplitProblem& problem, const Launch& launch, int multiprocessors, const SplitCost& cost,
                      int wanted) {
    if (wanted > 0) return split_into(problem, wanted);
    constexpr double kWorth = 0.9;                   // the time with a split has to be below this fraction of the time without
    constexpr double kBefore = 32, kPerSegment = 1;  // in tokens: starting a segment, and applying the map of one before it
    const i64 average = problem.packed ? problem.tokens / std::max<i64>(problem.sequences, 1) : problem.tokens;
    const i64 most = std::min<i64>(average / kStateChunk, kMaxSegments);
    Segments best;
    double best_time = kWorth * static_cast<double>(average) * time_of_blocks(launch(1).blocks, multiprocessors, launch(1));
    const SplitLaunch many = launch(kMaxSegments);
    if (cost.more * static_cast<double>(average * many.blocks) / multiprocessors * many.work > best_time)
        return best;  // no split pays, even at the full rate
    for (int parts = 2; parts <= most; ++parts) {
        const SplitLaunch split = launch(parts);
        const Segments candidate = split_into(problem, parts);
        if (candidate.count == 1) continue;
        const i64 segments = ceil_div(average, candidate.length);
        const double time = cost.launches + cost.more * (candidate.length + kBefore + kPerSegment * candidate.count) *
                                                time_of_blocks(split.blocks * segments, multiprocessors, split);
        if (time > 0.97 * best_time) continue;  // more segments have to be 3 % faster
        best = candidate, best_time = time;
    }
    return best;
}

// Splits sequences into segments that blocks take in turn: nothing is computed twice. The blocks of a launch have to be more
// than the `together` that run at a time, or they would wait for each other; then fewer multiprocessors are idle at the end.
// `unit`: tokens of which segments have a multiple, itself one of kStateChunk.
inline Segments split_in_turns(const SplitProblem& problem, i64 blocks, i64 together, int wanted, int unit = kStateChunk) {
    const i64 units = ceil_div(problem.tokens, unit);
    if (problem.packed || blocks <= together || units < 2) return {};
    const auto split = [&](i64 parts) {
        const i64 length = ceil_div(units, parts);
        return Segments{static_cast<int>(ceil_div(units, length)), static_cast<int>(length * unit)};
    };
    if (wanted > 0) return split(wanted);
    // In tokens: starting a segment, and a launch that clears the counters. At the end a third of a block's time is lost, as
    // measured for 1.2 to 4.8 times as many blocks as run together (docs/benchmarks/scan.md).
    constexpr double kBefore = 20, kLaunch = 60, kLost = 0.35, kWorth = 0.985;
    const auto time = [&](const Segments& split) {
        return (static_cast<double>(blocks * split.count) / static_cast<double>(together) + kLost) * (split.length + kBefore);
    };
    Segments best;
    double best_time = kWorth * time(split(1)) - kLaunch;
    for (int parts = 2; parts <= 8; ++parts)
        if (const Segments candidate = split(parts); time(candidate) < best_time) best = candidate, best_time = time(candidate);
    return best;
}

// Splits a sequence for a summary, which may need the segments near its end alone: the shorter they are, the less is computed
// in vain. `wanted`: as in choose_split.
inline Segments split_summary(const SplitProblem& problem, int wanted) {
    constexpr i64 kLeastTokens = 1024;  // a segment has at least
    if (wanted > 0) return split_into(problem, wanted);
    for (i64 parts = std::min<i64>(problem.tokens / kLeastTokens, kMaxSegments); parts > 1; parts /= 2)
        if (const Segments found = split_into(problem, static_cast<int>(parts)); found.count > 1) return found;
    return {};
}

inline std::string explain_split(const Segments& segments, bool in_turns = false) {
    if (segments.count == 1) return "sequences are not split";
    if (in_turns) return fmt::format("blocks take turns at {} segments of {} tokens", segments.count, segments.length);
    return fmt::format("sequences are split into {} segments of {} tokens", segments.count, segments.length);
}

}  // namespace gdn_cuda::scan
