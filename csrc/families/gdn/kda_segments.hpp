// Into how many segments chunked_forward splits a sequence of few heads, where every channel of the key has a gate.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct KdaSegmentsProblem {
    i64 sequences, heads, chunks;     // chunks: that a sequence has in a window, on average
    i64 row_tiles, transition_tiles;  // 64 rows each: a head's state has, and M
    i64 multiprocessors;
};

// On an H200, us. A chunk of gdn/kda_own takes 1.26 where 32 blocks run and 1.46 where 128 do, and a block 8 before its first.
struct KdaSegmentsModel {
    static constexpr double kChunk = 1.2, kChunkAmongAll = 0.26, kStart = 8, kLaunch = 10, kFolded = 1, kPrepared = 0.0375;
    // What another segment, and splitting at all, has to save.
    static constexpr double kWorthASegment = 0.97, kWorthSplitting = 0.95;

    const KdaSegmentsProblem& problem;

    // A launch of blocks with so many chunks each.
    double launch(i64 blocks, i64 chunks) const {
        const i64 at_once = std::max<i64>(problem.multiprocessors, 1), waves = ceil_div(blocks, at_once);
        const double busy = static_cast<double>(std::min(blocks, at_once)) / static_cast<double>(at_once);
        return static_cast<double>(waves) * (kStart + static_cast<double>(chunks) * (kChunk + kChunkAmongAll * busy));
    }
    double prepared() const { return kPrepared * static_cast<double>(problem.sequences * problem.heads * problem.chunks); }
    double operator()(i64 segments) const {
        const i64 heads = problem.sequences * problem.heads, chunks_each = ceil_div(problem.chunks, segments);
        if (segments == 1) return prepared() + launch(heads * problem.row_tiles, chunks_each);
        const i64 between = segments - 2,
                  ahead = heads * (problem.row_tiles + between * (problem.row_tiles + problem.transition_tiles));
        return prepared() + launch(ahead, chunks_each) + launch(heads * (segments - 1) * problem.row_tiles, chunks_each) +
               kLaunch + (between > 0 ? kLaunch + kFolded * static_cast<double>(between) : 0);
    }
};

inline constexpr i64 kMostKdaSegments = 64;

// 1: sequences are not split.
inline i64 kda_segments(const KdaSegmentsProblem& problem) {
    const KdaSegmentsModel time{problem};
    i64 best = 1;
    double least = time(1);
    for (i64 segments = 2; segments <= std::min(kMostKdaSegments, problem.chunks); ++segments) {
        const double other = time(segments);
        if (other < (best == 1 ? KdaSegmentsModel::kWorthSplitting : KdaSegmentsModel::kWorthASegment) * least) {
            best = segments;
            least = other;
        }
    }
    return best;
}

}  // namespace gdn_cuda::gdn
