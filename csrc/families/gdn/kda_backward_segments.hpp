// Into how many segments Kimi Delta Attention's backward splits every sequence along time.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// The chains of a launch.
struct KdaChains {
    i64 pairs;                   // sequences times value heads
    i64 chunks;                  // that a sequence has
    i64 value_tiles, key_tiles;  // blocks of a pair, for rows of a state and of M
    i64 fold_blocks;             // that gdn/fold_states has with 16 rows each
};

inline constexpr int kMostKdaBackwardSegments = 128;

// In us, on an H200 with 32 heads of 128 (2026-11-30), where two blocks a multiprocessor are taken to be as fast as one; the
// fold with few rows is estimated.
inline double kda_backward_segments_time(const KdaChains& chains, int segments, int multiprocessors) {
    constexpr double kGradients = 2.5, kStates = 1.8;  // for a chunk
    constexpr double kLaunch = 10, kFold = 5, kFoldOfFew = 4;
    const auto waves = [&](i64 blocks) { return static_cast<double>(ceil_div(blocks, i64{2} * multiprocessors)); };
    const auto chunks = static_cast<double>(ceil_div(chains.chunks, i64{segments}));
    const i64 values = chains.pairs * chains.value_tiles, keys = chains.pairs * chains.key_tiles, others = segments - 1;
    double time = chunks * (kGradients + kStates) * waves(values * segments);
    if (segments == 1) return time;
    time += chunks * (kGradients * waves(values * others) + kStates * waves((values + keys) * others));
    const bool is_few = chains.fold_blocks < multiprocessors;
    const double fold = is_few ? kFoldOfFew : kFold * static_cast<double>(ceil_div(chains.fold_blocks, i64{multiprocessors}));
    return time + 4 * kLaunch + 2 * fold * static_cast<double>(others);
}

inline int kda_backward_segments(const KdaChains& chains, int multiprocessors) {
    constexpr i64 kLeastChunks = 8;
    const int most = static_cast<int>(std::clamp<i64>(chains.chunks / kLeastChunks, 1, kMostKdaBackwardSegments));
    int best = 1;
    double least = kda_backward_segments_time(chains, 1, multiprocessors);
    for (int segments = 2; segments <= most; ++segments)
        if (const double time = kda_backward_segments_time(chains, segments, multiprocessors); time < least) {
            best = segments;
            least = time;
        }
    return best;
}

}  // namespace gdn_cuda::gdn
