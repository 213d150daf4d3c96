// The heuristic of gdn/decode: few configurations for many problems, all of them registered.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "families/gdn/decode.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

DecodeProblem random_decode(Random& random) {
    const RandomShape like = random_shape(random);
    return {.sequences = like.sequences,
            .heads = like.heads,
            .dk = random.one_of({64, 96, 128, 192, 256}),
            .dv = like.dv,
            .io = like.io,
            .state = like.state,
            .fused_gates = random.one_of({true, false}),
            .channel_gates = random.one_of({true, false})};
}

TEST(DecodeHeuristic, AModelsShapesNeedAHandfulOfKernels) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < kProblems; ++i) {
        DecodeProblem problem = random_decode(random);
        problem.dk = problem.dv = 128;
        problem.io = DType::bf16;
        problem.state = DType::f32;
        problem.fused_gates = true;
        problem.channel_gates = false;
        chosen.insert(to_text(decode_choice(problem, {}).config));
    }
    EXPECT_GE(chosen.size(), 2U);
    EXPECT_LE(chosen.size(), 4U);
}

TEST(DecodeHeuristic, ChoosesOnlyWhatIsRegistered) {
    Random random;
    const auto all = decode_configurations();
    for (int i = 0; i < kProblems; ++i) {
        const DecodeProblem problem = random_decode(random);
        const DecodeConfig config = decode_choice(problem, device_of(random.one_of({46, 108, 132, 160}))).config;
        ASSERT_NE(std::ranges::find(all, config), all.end()) << to_text(config);
    }
}

TEST(DecodeHeuristic, TheKernelCanDoTheProblem) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const DecodeProblem problem = random_decode(random);
        const auto [config, steps] = decode_choice(problem, {});
        ASSERT_EQ(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_EQ(config.state, problem.state);
        ASSERT_EQ(config.channel_gates, problem.channel_gates);
        ASSERT_EQ(config.fused_gates, problem.fused_gates && !problem.channel_gates);
        ASSERT_GE(steps, 1);
        ASSERT_LE(steps, config.layout().lanes);
        ASSERT_TRUE(steps == 1 || config.stages > 0) << "several steps go through shared memory";
        ASSERT_NE(explain_decode(problem, {}), "");
    }
}

TEST(DecodeTuning, CandidatesAreRegisteredDistinctAndCoverTheRows) {
    Random random;
    const auto registered = decode_configurations();
    for (int i = 0; i < kProblems; ++i) {
        const DecodeProblem problem = random_decode(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const std::vector<DecodeChoice> all = decode_candidates(problem, device);
        ASSERT_EQ(all.front(), decode_choice(problem, device));
        for (const DecodeChoice& one : all) {
            ASSERT_EQ(std::ranges::count(all, one), 1);
            ASSERT_TRUE(in(registered, one.config)) << to_text(one.config);
            ASSERT_EQ(one.config.stages > 0, one.steps > 1);
            ASSERT_GE(decode_blocks(problem, one) * one.config.rows_per_step() * one.steps,
                      problem.sequences * problem.heads * problem.dv);
        }
    }
}

TEST(DecodeTuning, AWinnerDecidesAboutItsProblemAlone) {
    const DecodeProblem problem{64, 32, 128, 128, DType::bf16, DType::bf16, true};
    const jit::DeviceTraits device = device_of(132);
    DecodeWinners winners;
    winners.all = {{problem, decode_candidates(problem, device).back(), 40, 41}};
    EXPECT_EQ(decode_choice(problem, device, &winners), winners.all.front().choice);
    EXPECT_NE(decode_choice(problem, device), winners.all.front().choice);
    EXPECT_NE(explain_decode(problem, device, &winners), explain_decode(problem, device));
    DecodeProblem other = problem;
    other.sequences = 65;
    EXPECT_EQ(decode_choice(other, device, &winners), decode_choice(other, device));
}

}  // namespace
}  // namespace gdn_cuda::gdn
