// Into how many segments sequences are split: every token is in one, none is empty, and full GPUs do not split.
#include <gtest/gtest.h>

#include "families/scan/selective_backward.hpp"
#include "families/scan/selective_forward.hpp"
#include "families/scan/selective_pieces.hpp"
#include "families/scan/selective_split.hpp"
#include "families/scan/selective_starts.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

constexpr SplitCost kCost{.more = 1.2, .launches = 0};

SplitProblem random_split(Random& random) {
    const bool packed = random.one_of({true, false});
    return {.sequences = random.size(64),
            .tokens = random.size(1 << 20),
            .packed = packed,
            .states = random.size(1 << 14),
            .parts = random.one_of({1, 2})};
}

void expect_covers(const SplitProblem& problem, const Segments& segments) {
    ASSERT_GE(segments.count, 1);
    ASSERT_LE(segments.count, kMaxSegments);
    if (segments.count == 1) return;
    ASSERT_EQ(segments.length % kStateChunk, 0);
    ASSERT_GE(i64{segments.count} * segments.length, problem.tokens);
    ASSERT_LT(i64{segments.count - 1} * segments.length, problem.tokens) << "no segment is empty";
    ASSERT_LE(8 * segments.count * problem.sequences * problem.states * problem.parts, kMaxSegmentBytes);
}

TEST(SelectiveSplit, SegmentsCoverEverySequenceAndAreNotEmpty) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const SplitProblem problem = random_split(random);
        for (const int parts : {1, 2, 3, 7, 128}) expect_covers(problem, split_into(problem, parts));
        const SplitLaunch launch{.blocks = random.size(2000), .resident = random.one_of({2, 3, 5}), .waits = 2, .work = 1};
        const auto launch_for = [&](int) { return launch; };
        expect_covers(problem, choose_split(problem, launch_for, 132, kCost, 0));
        EXPECT_EQ(choose_split(problem, launch_for, 132, kCost, 7).count, split_into(problem, 7).count);
    }
}

TEST(SelectiveSplit, WithoutTokensThereIsOneSegment) {
    for (const bool packed : {false, true}) EXPECT_EQ(split_into({3, 0, packed, 16, 1}, 7).count, 1);
}

TEST(SelectiveSplit, FillsIdleGpusAndLeavesFullOnes) {
    const SplitProblem problem{.sequences = 1, .tokens = 1 << 17, .packed = false, .states = 4096, .parts = 1};
    const auto chosen = [&](i64 blocks, int multiprocessors) {
        const auto launch_for = [&](int) { return SplitLaunch{.blocks = blocks, .resident = 3, .waits = 1.5, .work = 1}; };
        return choose_split(problem, launch_for, multiprocessors, kCost, 0).count;
    };
    for (const int multiprocessors : {46, 108, 132}) {
        for (const i64 blocks : {1, 8, 16}) {
            const i64 most = ceil_div(chosen(blocks, multiprocessors) * blocks, multiprocessors);
            EXPECT_GT(chosen(blocks, multiprocessors), 1);
            EXPECT_TRUE(most % 3 == 0 || chosen(blocks, multiprocessors) > 100) << most << " blocks on an SM that holds three";
        }
        EXPECT_EQ(chosen(3 * multiprocessors, multiprocessors), 1);
        EXPECT_EQ(chosen(100 * multiprocessors, multiprocessors), 1);
    }
}

TEST(SelectiveSplit, DoesNotSplitShortSequences) {
    const SplitProblem problem{.sequences = 1, .tokens = 512, .packed = false, .states = 1536, .parts = 1};
    const auto launch_for = [](int) { return SplitLaunch{.blocks = 20, .resident = 4, .waits = 1.5, .work = 16}; };
    EXPECT_GT(choose_split(problem, launch_for, 132, {.more = 1.5, .launches = 0}, 0).count, 1);
    EXPECT_EQ(choose_split(problem, launch_for, 132, {.more = 1.5, .launches = 20000}, 0).count, 1);
}

TEST(SelectiveSplit, SummariesHaveShortSegmentsThatFitTheWorkspace) {
    SplitProblem problem{.sequences = 1, .tokens = 1 << 19, .packed = false, .states = i64{8192} * 16, .parts = 1};
    EXPECT_EQ(split_summary(problem, 0).count, kMaxSegments);
    problem.tokens = 5000;
    EXPECT_EQ(split_summary(problem, 0).count, 4);
    problem.tokens = 1000;
    EXPECT_EQ(split_summary(problem, 0).count, 1);
    problem = {.sequences = 64, .tokens = 1 << 17, .packed = false, .states = i64{8192} * 16, .parts = 1};
    const Segments segments = split_summary(problem, 0);
    EXPECT_LE(2 * segments.count * problem.sequences * problem.states * i64{sizeof(float)}, kMaxSegmentBytes);
}

TEST(SelectiveTurns, CoverEverySequenceInUnitsAndAreNotEmpty) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const SplitProblem problem = random_split(random);
        const int unit = random.one_of({64, 128, 256});
        for (const int wanted : {0, 1, 3, 128}) {
            const Segments segments = split_in_turns(problem, random.size(4000), random.size(1000), wanted, unit);
            ASSERT_GE(segments.count, 1);
            if (segments.count == 1) continue;
            ASSERT_FALSE(problem.packed);
            ASSERT_EQ(segments.length % unit, 0);
            ASSERT_GE(i64{segments.count} * segments.length, problem.tokens);
            ASSERT_LT(i64{segments.count - 1} * segments.length, problem.tokens) << "no segment is empty";
        }
    }
}

TEST(SelectiveTurns, FillTheLastWave) {
    SplitProblem problem{.sequences = 8, .tokens = 2048, .packed = false, .states = 5120 * 16, .parts = 1};
    const auto count = [&](i64 blocks, int wanted = 0) { return split_in_turns(problem, blocks, 396, wanted).count; };
    EXPECT_EQ(count(396), 1) << "blocks would wait for each other";
    EXPECT_EQ(count(396, 4), 1);
    EXPECT_EQ(count(20000), 1) << "little is idle at the end";
    EXPECT_GT(count(512), 2);
    EXPECT_GT(count(1280), 2);
    EXPECT_EQ(count(1280, 4), 4);
    EXPECT_EQ(count(1280, 1), 1);
    problem.tokens = 128;
    EXPECT_EQ(count(512), 1) << "the counters cost a launch";
}

TEST(SelectivePieces, HasAConfigurationForEveryTransitionWithinTheSharedMemoryOfEveryGpu) {
    using enum Transition;
    for (const Transition transition : {exponential, zoh, bilinear, s7, rglru})
        for (const bool is_complex : {false, true}) {
            if (is_complex && (transition == s7 || transition == rglru)) continue;
            for (const bool is_summary : {false, true}) {
                const SelectivePiecesConfig config = selective_pieces_config(transition, is_complex, is_summary);
                EXPECT_EQ(config.transition, transition);
                EXPECT_EQ(config.is_complex, is_complex);
                EXPECT_EQ(config.is_summary, is_summary);
                EXPECT_LE(SelectivePieces::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
                EXPECT_EQ(config.lanes * 8, config.tokens()) << "a lane adds eight steps";
                EXPECT_EQ(kStateChunk % config.tokens(), 0) << "segments are whole tiles";
            }
        }
}

}  // namespace
}  // namespace gdn_cuda::scan
