// How gdn/prefill splits sequences, its configurations, and which kernel runs a prefill.
#include <gtest/gtest.h>

#include "families/chunked/launch.hpp"
#include "families/gdn/prefill_kernel.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr int kMultiprocessors = 132;

ChunkedScheduler scheduler_of(const ChunkedProblem& problem) {
    return {problem, kMultiprocessors};
}

constexpr ChunkedConfig with(ChunkedConfig config, auto change) {
    change(config);
    return config;
}

// ChunkedPlan asserts that its configuration is valid, so no kernel compiles with any of these.
TEST(ChunkedConfig, RefusesWhatTheRolesDoNotSupport) {
    for (const ChunkedConfig& config : kPrefillConfigurations) EXPECT_TRUE(config.is_valid()) << to_text(config);
    for (const PrefillAheadConfig& config : kPrefillAheadConfigurations) EXPECT_TRUE(config.block().is_valid());
    constexpr ChunkedConfig one = chunked_config(128, 1, DType::bf16), two = chunked_config(128, 2, DType::bf16);
    static_assert(one.is_valid() && two.is_valid());
    static_assert(with(one, [](auto& config) { config.direction = Direction::backward; }).is_valid());
    static_assert(!with(one, [](auto& config) { config.persistent = true; }).is_valid());  // two inverse warpgroups
    static_assert(!with(two, [](auto& config) { config.persistent = config.chained = true; }).is_valid());
    static_assert(!with(two, [](auto& config) { config.persistent = true, config.stages = 2; }).is_valid());
    static_assert(!with(two, [](auto& config) {
                       config.persistent = true;
                       config.direction = Direction::backward;
                   }).is_valid());
    static_assert(!with(one, [](auto& config) {
                       config.chained = true;
                       config.direction = Direction::backward;
                   }).is_valid());
    static_assert(!with(one, [](auto& config) { config.head_k = 256; }).is_valid());
    static_assert(!with(one, [](auto& config) { config.value_groups = 3; }).is_valid());
    static_assert(!with(one, [](auto& config) { config.stages = 1; }).is_valid());
    static_assert(!with(one, [](auto& config) { config.io = DType::f32; }).is_valid());
}

TEST(PrefillHeuristic, ChoosesWhatIsRegisteredAndFits) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RandomShape like = random_shape(random);
        const ChunkedProblem problem{.sequences = like.sequences,
                                     .tokens = like.tokens,
                                     .heads = like.heads,
                                     .dk = random.one_of({8, 40, 64, 96, 104, 128}),
                                     .dv = like.dv,
                                     .io = like.io,
                                     .state = like.state};
        const int multiprocessors = random.one_of({46, 108, 132, 160});
        const ChunkedScheduler scheduler(problem, multiprocessors);
        const ChunkedSchedule schedule = scheduler.schedule();
        const ChunkedSplit split = schedule.split;
        const ChunkedConfig config = schedule.config;
        ASSERT_NE(std::ranges::find(kPrefillConfigurations, config), kPrefillConfigurations.end()) << to_text(config);
        ASSERT_GE(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        for (const int segments : {1, 2, 3}) {
            const bool fits = scheduler.blocks(1) * segments <= multiprocessors;
            const bool long_enough = problem.tokens >= segments * kShortestSegment * kChunk;
            if (problem.dv <= kValueRows || (segments > 1 && !(fits && long_enough))) continue;
            for (const int groups : {1, 2})
                ASSERT_LE(scheduler.estimate(split).weighed(), scheduler.estimate({groups, segments}).weighed());
        }
        ASSERT_NE(scheduler.explain(), "");
        const int segments = split.segments;
        ASSERT_GE(segments, 1);
        ASSERT_LE(segments, kMostSegments);
        if (segments > 1) {
            ASSERT_LE(segments * scheduler.blocks(config.value_groups), multiprocessors);
            ASSERT_GE(problem.tokens, segments * kShortestSegment * kChunk);
        }
    }
}

TEST(PrefillTuning, EverySplitThatIsWeighedIsACandidateAndHasASchedule) {
    Random random;
    for (int i = 0; i < kProblems / 20; ++i) {
        const RandomShape like = random_shape(random);
        ChunkedProblem problem{.sequences = like.sequences,
                               .tokens = like.tokens,
                               .heads = like.heads,
                               .dk = random.one_of({40, 64, 128, 256}),
                               .dv = like.dv,
                               .io = like.io,
                               .state = like.state};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const std::vector<ChunkedSplit> all = chunked_candidates(problem, device);
        ASSERT_EQ(all.front(), ChunkedScheduler(problem, device.multiprocessors).best_split());
        for (const ChunkedSplit& split : all) {
            ASSERT_EQ(std::ranges::count(all, split), 1);
            const ChunkedScheduler scheduler(problem, device.multiprocessors, kChunkedPolicy, split);
            const ChunkedSchedule schedule = scheduler.schedule();
            ASSERT_EQ(schedule.split, split);
            ASSERT_TRUE(in(kPrefillConfigurations, schedule.config)) << to_text(schedule.config);
            if (split.segments == 1) continue;
            ASSERT_LE(split.segments * scheduler.blocks(split.value_groups), device.multiprocessors);
            ASSERT_GE(problem.tokens, split.segments * kShortestSegment * kChunk);
        }
        problem.deterministic = true;
        ASSERT_EQ(chunked_candidates(problem, device).size(), 1u) << "the length alone decides";
    }
}

TEST(PrefillTuning, OneSequenceHasACandidateForEveryNumberOfSegments) {
    const ChunkedProblem problem{
        .sequences = 1, .tokens = 8192, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    EXPECT_EQ(chunked_candidates(problem, device_of(kMultiprocessors)).size(), 2u + 4u);
    ChunkedWinners winners;
    winners.all = {{problem, {1, 2}, 160, 170}};
    EXPECT_EQ(explain_chunked(problem, device_of(kMultiprocessors), &winners), explain(winners.all.front()));
}

TEST(PrefillHeuristic, SequencesAreSplitWhereHeadsLeaveRoom) {
    ChunkedProblem problem{
        .sequences = 1, .tokens = 32768, .heads = 8, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    const auto split = [&] { return scheduler_of(problem).best_split(); };
    const auto is_chained = [&] { return scheduler_of(problem).estimate(split()).is_chained; };
    EXPECT_EQ(split().segments, kMultiprocessors / 8);
    EXPECT_EQ(split().value_groups, 2);
    EXPECT_TRUE(is_chained());
    problem.deterministic = true;
    EXPECT_EQ(split().segments, 1);
    EXPECT_EQ(split().value_groups, 1);
    problem.deterministic = false;
    problem.tokens = 8 * kShortestSegment * kChunk;
    EXPECT_EQ(split().segments, 8);
    EXPECT_TRUE(is_chained());
    problem.tokens = 4 * kShortestSegment * kChunk;
    EXPECT_EQ(split().segments, 1) << "a split takes longer to start";
    problem.tokens = kShortestSegment * kChunk;
    EXPECT_EQ(split().segments, 1);
    problem = {.sequences = 8, .tokens = 32768, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    EXPECT_EQ(split().segments, 1);
}

TEST(PrefillHeuristic, FixedSegmentsDependOnASequenceAlone) {
    ChunkedProblem problem{.sequences = 1,
                           .tokens = 32768,
                           .heads = 8,
                           .dk = 128,
                           .dv = 128,
                           .io = DType::bf16,
                           .state = DType::f32,
                           .deterministic = true};
    const auto by_length = [&] { return scheduler_of(problem).by_length(); };
    const ChunkedSchedule alone = by_length().value();
    EXPECT_EQ(alone.split.segments, kMultiprocessors / 8);
    EXPECT_TRUE(alone.chain.is_cached);
    EXPECT_GT(alone.uneven.most(), alone.split.segments);
    const auto expect_the_same = [&](const ChunkedSchedule& schedule, i64 chunks) {
        EXPECT_EQ(schedule.split.segments, std::min<i64>(chunks / kShortestByLength, alone.split.segments));
        EXPECT_EQ(schedule.chain.first_length, alone.chain.first_length);
        EXPECT_EQ(schedule.uneven.reach, schedule.split.segments == alone.split.segments ? alone.uneven.reach : 0);
    };
    problem.sequences = 40;
    expect_the_same(by_length().value(), 512);
    EXPECT_FALSE(by_length()->chain.is_cached) << "they would take more than a GB";
    for (const i64 tokens : {5121, 8192, 12345, 200000}) {
        problem.sequences = 1;
        problem.tokens = tokens;
        expect_the_same(by_length().value(), chunks_in(tokens));
        problem.sequences = 24;
        problem.tokens = tokens / 24;
        problem.packed_tokens = tokens;
        const ChunkedSchedule packed = by_length().value();
        expect_the_same(packed, chunks_in(tokens));
        EXPECT_EQ(packed.sequences, ceil_div(tokens, i64{kLongestUnsplit * kChunk}));
        problem.packed_tokens = 0;
    }
    problem.sequences = 1;
    problem.tokens = 8192;
    EXPECT_EQ(by_length()->split.value_groups, 1) << "all blocks fit at once";
    problem.sequences = 2;
    EXPECT_EQ(by_length()->split.value_groups, 2);
    problem.tokens = kLongestUnsplit * kChunk;
    EXPECT_FALSE(by_length()) << "no sequence is split";
    problem.tokens = 32768;
    problem.sequences = 65535 / alone.split.segments + 1;
    EXPECT_FALSE(by_length()) << "beyond the limit of a grid";
    problem.sequences = 1;
    problem.heads = 32;
    EXPECT_FALSE(by_length()) << "gdn/prefill_ahead is faster";
    problem.heads = 8;
    problem.deterministic = false;
    EXPECT_FALSE(by_length());
}

// A group's steps, the exchange, and then every segment from the state after the first one.
int steps_to_the_last_state(int segments, int group) {
    int most = 0;
    for (int segment = 1; segment < segments; ++segment) {
        int steps = 0, at = 1;  // the state before segment `at`
        while (group > 1 && at + group + 2 <= segment) at += group, ++steps;
        most = std::max(most, steps + segment - at);
    }
    return most + (group > 1 ? group - 1 + 3 : 0);
}

TEST(PrefillHeuristic, MapsAreMultipliedInGroupsWhereThatSavesSteps) {
    for (int segments = 2; segments <= kMostSegments; ++segments) {
        const int steps = longest_chain(segments, segments_in_group(segments));
        EXPECT_EQ(steps, steps_to_the_last_state(segments, segments_in_group(segments))) << segments;
        EXPECT_LE(steps, segments - 2);
        for (int other = 1; other < segments; ++other)  // with 30 segments, groups of four would save one
            EXPECT_LE(steps, steps_to_the_last_state(segments, other) + (segments == 30)) << segments;
    }
    EXPECT_EQ(segments_in_group(8), 1);
    EXPECT_GT(segments_in_group(24), 1);
}

// Each segment has kShortestUneven chunks at least, but the last chunk may have only one token.
TEST(PrefillHeuristic, ASequenceHasRoomForItsSummariesAmongItsTokens) {
    for (int segments = 2; segments <= kMostSegments; ++segments) {
        const i64 tokens = (kShortestUneven * segments - 1) * kChunk + 1;
        for (i64 start = 0; start < kSummaryTokens; ++start)
            ASSERT_GE((start + tokens) / kSummaryTokens - start / kSummaryTokens, most_summaries(segments));
    }
}

TEST(PrefillHeuristic, SlowDecayHeadsGetMoreBlocks) {
    for (const int heads : {2, 4, 8, 16, 32}) {
        const int size = heads < 32 ? 128 : 64;  // 32 heads of 128 are not chained
        ChunkedProblem problem{
            .sequences = 1, .tokens = 32768, .heads = heads, .dk = size, .dv = size, .io = DType::bf16, .state = DType::f32};
        const ChunkedScheduler scheduler = scheduler_of(problem);
        const ChunkedSplit split = scheduler.best_split();
        const ChunkedChain chain = scheduler.chain(split);
        const UnevenSplit uneven = scheduler.uneven(split, chain);
        for (const auto& warm_up : uneven.segments) {
            int before = kMostSegments;
            for (int many = 1; many < heads; ++many) {
                const int segments = warm_up[many];
                if (segments == 0) continue;
                EXPECT_GT(segments, split.segments);
                EXPECT_LE(segments, before) << "more heads have fewer each";
                EXPECT_LE(many * segments + heads - many, heads * split.segments);
                EXPECT_LT(scheduler.chain_ns(chain, {split.value_groups, segments}), chain.ns);
                before = segments;
            }
        }
        for (int many = 1; many < heads; ++many)
            EXPECT_LE(uneven.segments[1][many], uneven.segments[0][many]) << "others that need more get more";
        EXPECT_EQ(uneven.reach > 0, uneven.most() > 0) << heads;
        EXPECT_TRUE(heads < 16 || uneven.most() > 0) << heads;
        EXPECT_EQ(uneven.segments[0][0] + uneven.segments[1][0], 0) << "heads that are all slow are split evenly";
        problem.sequences = 2;
        EXPECT_EQ(scheduler_of(problem).uneven(split, chain).reach, 0) << "one sequence's heads alone are compared";
    }
}

TEST(PrefillHeuristic, TheGridIsPersistentFromThreeWavesOn) {
    const jit::DeviceTraits device;
    const ChunkedConfig wide = chunked_config(128, 2, DType::bf16);
    const i64 wave = device.multiprocessors;
    const auto rows = [](int dv) { return GdnCall{.dv = dv, .values = dv, .outputs = dv}; };
    EXPECT_FALSE(prefill_is_persistent(wide, 2 * wave, 1, rows(128), device));
    EXPECT_TRUE(prefill_is_persistent(wide, 2 * wave + 1, 1, rows(128), device));
    EXPECT_FALSE(prefill_is_persistent(chunked_config(128, 1, DType::bf16), 9 * wave, 1, rows(128), device));
    EXPECT_FALSE(prefill_is_persistent(wide, 9 * wave, 2, rows(128), device));
    for (const int dv : {72, 256}) EXPECT_TRUE(prefill_is_persistent(wide, 9 * wave, 1, rows(dv), device)) << dv;
    EXPECT_FALSE(prefill_is_persistent(wide, 9 * wave, 1, rows(192), device)) << "every other block would have half the rows";
    int any = 0;
    GdnCall packed = rows(128), steps = rows(128);
    packed.cu_seqlens.data = steps.steps.data = &any;
    EXPECT_FALSE(prefill_is_persistent(wide, 9 * wave, 1, packed, device)) << "their lengths differ";
    EXPECT_FALSE(prefill_is_persistent(wide, 9 * wave, 1, steps, device)) << "checkpoints are not stored";
}

TEST(PrefillHeuristic, TheLongestPackedSequencesStartFirst) {
    const jit::DeviceTraits device;
    int any = 0;
    GdnCall packed{.sequences = kMostByLength};
    packed.cu_seqlens.data = &any;
    EXPECT_TRUE(prefill_takes_longest_first(device.multiprocessors + 1, 1, packed, device));
    EXPECT_FALSE(prefill_takes_longest_first(device.multiprocessors, 1, packed, device)) << "all start at once";
    EXPECT_FALSE(prefill_takes_longest_first(device.multiprocessors + 1, 2, packed, device));
    EXPECT_FALSE(prefill_takes_longest_first(device.multiprocessors + 1, 1, {}, device)) << "all are of one length";
    ++packed.sequences;
    EXPECT_FALSE(prefill_takes_longest_first(device.multiprocessors + 1, 1, packed, device))
        << "each block would compare too many";
}

// The heuristic chooses one configuration, and run() may change some of its fields.
TEST(PrefillHeuristic, EveryFormOfAConfigurationIsRegistered) {
    const auto expect_registered = [](const ChunkedConfig& config) {
        EXPECT_NE(std::ranges::find(kPrefillConfigurations, config), kPrefillConfigurations.end()) << to_text(config);
    };
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {192, 256}) expect_registered(chunked_config(head_k, 1, io));
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {64, 96, 128})
            for (const int value_groups : {1, 2}) {
                ChunkedConfig config = chunked_config(head_k, value_groups, io);
                expect_registered(config);
                config.chained = true;
                expect_registered(config);
                config.chained = false;
                config.persistent = true;
                if (value_groups == 2) expect_registered(config);
            }
}

TEST(PrefillHeuristic, SequencesOfLongKeysAreNotSplit) {
    for (const bool deterministic : {false, true})
        for (const int dk : {136, 192, 256})
            for (const int heads : {1, 4, 32, 128})
                for (const i64 tokens : {64, 2048, 8192, 131072}) {
                    const ChunkedProblem problem{.sequences = 1,
                                                 .tokens = tokens,
                                                 .heads = heads,
                                                 .dk = dk,
                                                 .dv = 256,
                                                 .io = DType::bf16,
                                                 .state = DType::f32,
                                                 .deterministic = deterministic};
                    const ChunkedSchedule schedule = scheduler_of(problem).schedule();
                    EXPECT_EQ(schedule.config, chunked_config(dk, 1, DType::bf16));
                    EXPECT_EQ(schedule.unsplit, schedule.config);
                    EXPECT_FALSE(schedule.two_launches || schedule.ahead);
                    EXPECT_EQ(schedule.summaries, 0);
                    EXPECT_EQ(schedule.workspace(), 0);
                    EXPECT_EQ(schedule.blocks, 4 * heads);
                    EXPECT_EQ(schedule.split.segments, 1);
                }
}

// Slow-decay heads take at most 3 % longer than without a split, and a second launch; calls too short for one stay with
// gdn/prefill, and take as long as its unsplit sequences. A segment does not begin so early that it takes longer.
TEST(PrefillHeuristic, SlowDecayHeadsLoseNothingBySplits) {
    for (const int heads : {4, 8, 16, 32, 48, 64})
        for (const i64 tokens : {1024, 2048, 4096, 8192, 32768, 131072}) {
            ChunkedProblem problem{
                .sequences = 1, .tokens = tokens, .heads = heads, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
            const ChunkedScheduler scheduler = scheduler_of(problem);
            const ChunkedSplit split = scheduler.best_split();
            const double slow_decay = scheduler.estimate(split).slow_decay;
            problem.deterministic = true;
            const ChunkedSplit unsplit = scheduler_of(problem).best_split();
            const double expected = tokens < kChunkedPolicy.shortest_twice * kChunk && split.segments > 1
                                        ? scheduler.chunks_ns(unsplit, chunks_in(tokens))
                                        : scheduler_of(problem).estimate(unsplit).slow_decay + kChunkedPolicy.second_launch_ns;
            EXPECT_LE(slow_decay, 1.03 * expected) << heads << " heads, " << tokens << " tokens";
            if (split.segments == 1) continue;
            const int reach = scheduler.reach(split);
            ASSERT_GE(reach, 1);
            const i64 segment_chunks = ceil_div(chunks_in(tokens), split.segments);
            EXPECT_LE(scheduler.chunks_ns(split, segment_chunks + reach), slow_decay)
                << heads << " heads, " << tokens << " tokens, " << reach << " chunks";
        }
}

// With the times of another card, the schedule is another.
TEST(PrefillHeuristic, TimesOfThePolicyDecide) {
    const ChunkedProblem problem{
        .sequences = 1, .tokens = 8192, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    const auto schedule = [&](const ChunkedPolicy& policy) {
        return ChunkedScheduler(problem, kMultiprocessors, policy).schedule();
    };
    EXPECT_TRUE(schedule({}).ahead);
    EXPECT_FALSE(schedule({.ahead_chunk_ns = 9000}).ahead);
    EXPECT_GT(schedule({}).split.segments, 1);
    EXPECT_EQ(schedule({.segments_ns = 1e9}).split.segments, 1);
    ChunkedProblem few = problem;
    few.heads = 4;
    const auto chained = [&](const ChunkedPolicy& policy) {
        return ChunkedScheduler(few, kMultiprocessors, policy).schedule().config.chained;
    };
    EXPECT_TRUE(chained({}));
    EXPECT_FALSE(chained({.shortest_chained = 1000}));
}

TEST(PrefillHeuristic, FewHeadsAreSpreadAndManyShareTheirHelpers) {
    const ChunkedProblem one{
        .sequences = 1, .tokens = 4096, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    EXPECT_EQ(scheduler_of(one).best_split().value_groups, 1);
    ChunkedProblem eight = one;
    eight.sequences = 8;
    EXPECT_EQ(scheduler_of(eight).best_split().value_groups, 2);
}

TEST(PrefillKernel, HopperHasItsOwnAndTheRestShareOne) {
    using Wanted = WantedPrefill;
    for (const int dk : {8, 128, 136, 256})
        EXPECT_EQ(prefill_kernel(true, true, dk, 90, Wanted::automatic), PrefillKernel::wgmma) << dk;
    EXPECT_EQ(prefill_kernel(true, false, 128, 90, Wanted::automatic), PrefillKernel::mma) << "gates far apart";
    for (const int capability : {80, 86, 89, 100, 120})
        EXPECT_EQ(prefill_kernel(true, true, 128, capability, Wanted::automatic), PrefillKernel::mma) << capability;
    EXPECT_EQ(prefill_kernel(true, true, 128, 75, Wanted::mma), PrefillKernel::recurrent);
    for (const Wanted wanted : {Wanted::automatic, Wanted::mma, Wanted::recurrent})
        EXPECT_EQ(prefill_kernel(false, true, 128, 90, wanted), PrefillKernel::recurrent)
            << "rows that do not start on 16 bytes";
    EXPECT_EQ(prefill_kernel(true, true, 128, 90, Wanted::mma), PrefillKernel::mma);
    EXPECT_EQ(prefill_kernel(true, true, 128, 90, Wanted::recurrent), PrefillKernel::recurrent);
}

}  // namespace
}  // namespace gdn_cuda::gdn
