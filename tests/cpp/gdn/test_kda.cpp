// The windows of chunks in which Kimi Delta Attention runs, and the segments of sequences there and in the backward.
#include <gtest/gtest.h>

#include <gdn_cuda/kernels/gdn/kda_backward/plan.cuh>

#include "families/gdn/kda_ahead_model.hpp"
#include "families/gdn/kda_backward_segments.hpp"
#include "families/gdn/kda_segments.hpp"
#include "families/gdn/kda_window.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(KdaWindow, BoundsMemory) {
    for (const i64 positions : {0, 1, 2, 17, 500, 1 << 20})
        for (int heads = 0; heads <= 300; ++heads) {
            const i64 window = kda_window(positions, heads);
            EXPECT_GE(window, 1);
            EXPECT_LE(window, std::max<i64>(positions, 1));
            EXPECT_LE(window * heads, kKdaMostRecords);
        }
}

TEST(KdaWindow, IsAllChunksIfTheirRecordsFit) {
    EXPECT_EQ(kda_window(128, 64), 128);
    EXPECT_EQ(kda_window(160, 64), 160);
    EXPECT_EQ(kda_window(640, 16), 640);
    EXPECT_EQ(kda_window(1000, 10000), 1);
}

TEST(KdaWindow, IsAsLongAsTheOthersOfACall) {
    EXPECT_EQ(kda_window(161, 64), 81);
    EXPECT_EQ(kda_window(512, 64), 128);
    EXPECT_EQ(kda_window(300, 96), 100);
}

i64 segments(i64 sequences, i64 heads, i64 tokens) {
    return kda_segments({.sequences = sequences,
                         .heads = heads,
                         .chunks = tokens / 64,
                         .row_tiles = 2,
                         .transition_tiles = 2,
                         .multiprocessors = 132});
}

TEST(KdaSegments, SplitLongSequencesOfFewHeads) {
    EXPECT_EQ(segments(1, 4, 32768), 9);
    EXPECT_EQ(segments(1, 4, 8192), 8);
    EXPECT_EQ(segments(2, 4, 32768), segments(1, 8, 32768));
    EXPECT_GE(segments(1, 8, 32768), 5);
    EXPECT_GE(segments(1, 16, 32768), 3);
}

TEST(KdaSegments, AreNoneWhereTheyCostMoreThanTheySave) {
    EXPECT_EQ(segments(1, 32, 32768), 1);
    EXPECT_EQ(segments(8, 4, 32768), 1);
    EXPECT_EQ(segments(1, 64, 131072), 1);
    EXPECT_EQ(segments(1, 1, 2048), 1);
    EXPECT_EQ(segments(1, 1, 64), 1);
    EXPECT_EQ(segments(0, 0, 0), 1);
}

TEST(KdaSegments, SaveWhatTheModelAsksFor) {
    for (const i64 heads : {1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64})
        for (const i64 chunks : {1, 2, 16, 64, 128, 500, 2048, 8192})
            for (const i64 multiprocessors : {1, 78, 132}) {
                const KdaSegmentsProblem problem{1, heads, chunks, 2, 2, multiprocessors};
                const KdaSegmentsModel time{problem};
                const i64 found = kda_segments(problem);
                EXPECT_TRUE(1 <= found && found <= std::min(chunks, kMostKdaSegments));
                if (found > 1) {
                    EXPECT_LT(time(found), 0.95 * time(1));
                }
            }
}

constexpr int kH200 = 132;

KdaSegmentsProblem problem_of(i64 sequences, i64 heads, i64 tokens, i64 multiprocessors = kH200) {
    return {.sequences = sequences,
            .heads = heads,
            .chunks = tokens / 64,
            .row_tiles = 2,
            .transition_tiles = 2,
            .multiprocessors = multiprocessors};
}
KdaAheadSplit ahead(i64 sequences, i64 heads, i64 tokens) {
    const KdaSegmentsProblem problem = problem_of(sequences, heads, tokens);
    return kda_ahead_split(problem, kda_segments(problem));
}

TEST(KdaAhead, IsForOwnersThatLeaveMultiprocessorsFree) {
    for (const i64 heads : {16, 20, 24, 32}) {
        EXPECT_EQ(ahead(1, heads, 8192).owners, 2 * heads) << heads;
        EXPECT_EQ(ahead(1, heads, 8192).preparers, kH200 - 2 * heads) << heads;
    }
    EXPECT_EQ(ahead(2, 8, 8192).owners, 32);
    EXPECT_EQ(ahead(1, 34, 8192).owners, 0);
    EXPECT_EQ(ahead(1, 64, 8192).owners, 0);
    EXPECT_EQ(ahead(1, 96, 8192).owners, 0);
    EXPECT_EQ(ahead(20, 64, 400).owners, 0);
}

TEST(KdaAhead, LeavesLongSequencesOfFewHeadsToSegments) {
    EXPECT_EQ(ahead(1, 4, 32768).owners, 0);
    EXPECT_EQ(ahead(1, 8, 32768).owners, 0);
    EXPECT_EQ(ahead(1, 4, 8192).owners, 0);
}

TEST(KdaAhead, IsNotForShortCalls) {
    for (const i64 tokens : {0, 64, 200}) EXPECT_EQ(ahead(1, 16, tokens).owners, 0) << tokens;
    EXPECT_EQ(ahead(0, 16, 8192).owners, 0);
}

TEST(KdaAhead, HasOwnersPrepareWhereTheOthersWouldTakeLonger) {
    const auto forced = [](i64 heads) { return split_kda_ahead(problem_of(1, heads, 8192)).first_records; };
    EXPECT_EQ(forced(16), 0);
    const i64 first = forced(32), records = 32 * 128;
    EXPECT_GT(first, records / 4);
    EXPECT_LT(first, records);
}

TEST(KdaAhead, SavesWhatTheModelAsksFor) {
    for (const i64 heads : {1, 4, 12, 16, 24, 32, 48, 65, 66})
        for (const i64 chunks : {1, 16, 128, 512})
            for (const i64 multiprocessors : {1, 78, 132}) {
                const KdaSegmentsProblem problem = problem_of(1, heads, 64 * chunks, multiprocessors);
                const i64 segments = kda_segments(problem);
                const KdaAheadSplit split = kda_ahead_split(problem, segments);
                EXPECT_LE(split.owners + split.preparers, multiprocessors);
                if (split.owners == 0) continue;
                EXPECT_GT(split.preparers, 0);
                EXPECT_LE(split.first_records, heads * chunks);
                EXPECT_LT(KdaAheadModel{problem}(), KdaSegmentsModel{problem}(segments));
            }
}

// There may be no block that prepares until no record is left: then no block owns rows before all records are taken.
TEST(KdaAhead, EndsOnAnyDevice) {
    for (const i64 multiprocessors : {1, 2, 3, 132})
        for (const i64 heads : {1, 2, 16, 200}) {
            const KdaAheadSplit split = split_kda_ahead(problem_of(1, heads, 640, multiprocessors));
            EXPECT_GE(split.owners, 1);
            EXPECT_LE(split.owners + split.preparers, multiprocessors);
            EXPECT_TRUE(split.preparers > 0 || split.first_records == kAllKdaRecords);
        }
}

KdaChains chains_of(i64 pairs, i64 tokens) {
    return {.pairs = pairs, .chunks = ceil_div(tokens, i64{16}), .value_tiles = 2, .key_tiles = 2, .fold_blocks = pairs * 8};
}

TEST(KdaBackwardSegments, AreOneWhereChainsFillTheDeviceOrAreShort) {
    for (const i64 tokens : {0, 1, 16, 100, 255}) EXPECT_EQ(kda_backward_segments(chains_of(1, tokens), kH200), 1) << tokens;
    for (const i64 pairs : {67, 132, 256, 4096}) EXPECT_EQ(kda_backward_segments(chains_of(pairs, 1 << 20), kH200), 1) << pairs;
}

TEST(KdaBackwardSegments, FillTheDevice) {
    for (const i64 pairs : {1, 4, 5, 16, 32}) {
        const int segments = kda_backward_segments(chains_of(pairs, 32768), kH200);
        EXPECT_LE(pairs * 2 * segments, 2 * kH200) << pairs;
        EXPECT_GT(segments, 1) << pairs;
        EXPECT_GE(pairs * 2 * (segments + 1), pairs == 1 ? 60 : kH200) << pairs;
    }
    EXPECT_EQ(kda_backward_segments(chains_of(16, 8192), kH200), 8);
    EXPECT_EQ(kda_backward_segments(chains_of(5, 32768), kH200), 26);
}

TEST(KdaBackwardSegments, AreNeverSlowerThanOne) {
    for (const int multiprocessors : {1, 20, 132})
        for (const i64 pairs : {1, 3, 16, 65, 70, 1000})
            for (const i64 tokens : {100, 1000, 10000, 1000000}) {
                const KdaChains chains = chains_of(pairs, tokens);
                const int segments = kda_backward_segments(chains, multiprocessors);
                EXPECT_GE(segments, 1);
                EXPECT_LE(segments, kMostKdaBackwardSegments);
                EXPECT_LE(kda_backward_segments_time(chains, segments, multiprocessors),
                          kda_backward_segments_time(chains, 1, multiprocessors));
            }
}

TEST(KdaBackwardSegments, ShareAllChunksInOrder) {
    for (const int chunks : {0, 1, 2, 5, 16, 1000})
        for (const int count : {1, 2, 3, 7, 128}) {
            int end = 0, least = chunks, most = 0;
            for (int segment = 0; segment < count; ++segment) {
                const KdaSegment each = kda_segment(chunks, count, segment);
                EXPECT_EQ(each.first, end);
                end = each.end;
                least = std::min(least, each.end - each.first);
                most = std::max(most, each.end - each.first);
            }
            EXPECT_EQ(end, chunks);
            EXPECT_LE(most - least, 1);
        }
}

}  // namespace
}  // namespace gdn_cuda::gdn
