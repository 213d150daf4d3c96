// Whether chunked_forward prepares chunks beside those that own states, where every channel of the key has a gate: in one
// launch (gdn/kda_ahead), or before them, in a launch of its own.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/ahead_plan.cuh>
#include <limits>

#include "kda_segments.hpp"

namespace gdn_cuda::gdn {

// How the blocks of gdn/kda_ahead share the work; owners: 0 if there are two launches.
struct KdaAheadSplit {
    i64 preparers, owners;  // blocks
    i64 first_records;      // taken before owners stop preparing, if records take no longer than as a rule
    double chain_ns;        // KdaAheadArgs::chain
};
inline constexpr i64 kAllKdaRecords = std::numeric_limits<int>::max();

// On an H200, us (benchmarks/kda_launches.py, 876893fa, and the times of KdaSegmentsModel).
struct KdaAheadModel {
    using Segments = KdaSegmentsModel;
    // A multiprocessor prepares a record in 6, two at a time, and owners take 15 % longer beside others that prepare. Of the
    // launch, 15 are before an owner has its first records; what is prepared in the last 10 is applied too late.
    static constexpr double kRecord = 6, kBeside = 1.15, kFirst = 15, kLast = 10;
    static constexpr double kWorthIt = 0.9;
    // Owners' share of the multiprocessors. Where decays are fast a record takes up to 8, which the host does not know: with 32
    // heads of 128, 1x8192, one launch takes 502 in place of 459 then, and 305 in place of 354 with gates as initialised
    // (benchmarks/kda_windows.py --ahead, 2026-11-30).
    static constexpr double kMostOwners = 0.5;

    const KdaSegmentsProblem& problem;

    double multiprocessors() const { return static_cast<double>(std::max<i64>(problem.multiprocessors, 1)); }
    i64 tiles() const { return problem.sequences * problem.heads * problem.row_tiles; }
    i64 records() const { return problem.sequences * problem.heads * problem.chunks; }
    // Those that own states until the end, and only one work tile each.
    double own() const { return kBeside * Segments{problem}.launch(tiles(), problem.chunks); }
    // Owners own, and what the others prepare is of use.
    double while_owning() const { return std::max(own() - kLast, 0.0); }
    // All blocks prepare for so long.
    double together() const {
        const double beside = (multiprocessors() - static_cast<double>(tiles())) * while_owning();
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
              together = static_cast<i64>(time.together() * time.multiprocessors() / KdaAheadModel::kRecord);
    if (preparers == 0) return {.preparers = 0, .owners = owners, .first_records = kAllKdaRecords, .chain_ns = 0};
    return {.preparers = preparers,
            .owners = owners,
            // Each half has one in hand as it takes the last one of these.
            .first_records = together > 0 ? std::max(together - kKdaHalves * multiprocessors, i64{1}) : 0,
            .chain_ns = 1000 * time.while_owning() * static_cast<double>(preparers) / static_cast<double>(preparers + owners)};
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
