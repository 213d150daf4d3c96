// Whether chunked_forward prepares chunks beside those that own states, where every channel of the key has a gate: in one
// launch (gdn/kda_ahead), or before them, in a launch of its own.
#pragma once

#include <limits>

#include "kda_segments.hpp"

namespace gdn_cuda::gdn {

// How the blocks of gdn/kda_ahead share the work; owners: 0 if there are two launches.
struct KdaAheadSplit {
    i64 preparers, owners;  // blocks
    i64 first_records;      // taken before owners stop preparing
};
inline constexpr i64 kAllKdaRecords = std::numeric_limits<int>::max();

// On an H200, us (benchmarks/kda_launches.py, 876893fa, and the times of KdaSegmentsModel).
struct KdaAheadModel {
    using Segments = KdaSegmentsModel;
    // A multiprocessor prepares a record in 5.3, two at a time. Of the launch, 15 are before an owner has its first records;
    // what is prepared in the last 10 is applied too late.
    static constexpr double kRecord = 5.3, kFirst = 15, kLast = 10;
    static constexpr double kWorthIt = 0.9;
    // Owners' share of the multiprocessors. Where decays are fast a record takes longer, which the host does not know, and
    // owners stop preparing too early: 32 heads of 128, 1x8192, lose some 40 then, and gain as many with gates as initialised;
    // 40 heads lose more than they gain (benchmarks/kda_windows.py --ahead).
    static constexpr double kMostOwners = 0.5;

    const KdaSegmentsProblem& problem;

    double multiprocessors() const { return static_cast<double>(std::max<i64>(problem.multiprocessors, 1)); }
    i64 tiles() const { return problem.sequences * problem.heads * problem.row_tiles; }
    i64 records() const { return problem.sequences * problem.heads * problem.chunks; }
    // Those that own states until the end, and only one work tile each.
    double own() const { return Segments{problem}.launch(tiles(), problem.chunks); }
    // All blocks prepare for so long.
    double together() const {
        const double beside = (multiprocessors() - static_cast<double>(tiles())) * std::max(own() - kLast, 0.0);
        return std::max(kRecord * static_cast<double>(records()) - beside, 0.0) / multiprocessors();
    }
    double operator()() const { return kFirst + together() + own(); }
};

// Where it is forced, even if blocks own several work tiles.
inline KdaAheadSplit split_kda_ahead(const KdaSegmentsProblem& problem) {
    const KdaAheadModel time{problem};
    const i64 multiprocessors = std::max<i64>(problem.multiprocessors, 1),
              owners = std::max<i64>(std::min(time.tiles(), multiprocessors), 1),
              preparers = std::min(multiprocessors - owners, ceil_div(time.records(), i64{2})),
              first = static_cast<i64>(time.together() * time.multiprocessors() / KdaAheadModel::kRecord);
    return {.preparers = preparers, .owners = owners, .first_records = preparers > 0 ? first : kAllKdaRecords};
}

// segments: as kda_segments has found them for two launches.
inline KdaAheadSplit kda_ahead_split(const KdaSegmentsProblem& problem, i64 segments) {
    const KdaAheadModel time{problem};
    if (time.records() == 0 || static_cast<double>(time.tiles()) > KdaAheadModel::kMostOwners * time.multiprocessors())
        return {};
    if (time() >= KdaAheadModel::kWorthIt * KdaSegmentsModel{problem}(segments)) return {};
    return split_kda_ahead(problem);
}

}  // namespace gdn_cuda::gdn
