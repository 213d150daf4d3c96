// Choices for scan/selective_step: few configurations for many problems, each of which they can compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "families/scan/selective_step.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

SelectiveStepProblem random_step(Random& random) {
    const DType state = random.one_of({DType::f32, DType::bf16, DType::f16, DType::c64});
    const int columns = static_cast<int>(random.size(kMaxStates));
    return {.sequences = random.size(4096),
            .tokens = random.one_of({1, 1, 2, 8}),
            .groups = static_cast<int>(random.size(16)),
            .group_rows = static_cast<int>(random.size(8192)),
            .columns = columns,
            .state = state,
            .aligned = columns * bytes_of(state) % 16 == 0 && random.one_of({true, false}),
            .near = random.one_of({true, false}),
            .plain = random.one_of({true, false})};
}

TEST(SelectiveStepHeuristic, ChoosesOnlyWhatIsRegistered) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < kProblems; ++i) {
        const SelectiveStepConfig config = selective_step_choice(random_step(random), {}).config;
        ASSERT_NE(std::ranges::find(SelectiveStep::kConfigurations, config), SelectiveStep::kConfigurations.end())
            << to_text(config);
        chosen.insert(to_text(config));
    }
    EXPECT_EQ(chosen.size(), SelectiveStep::kConfigurations.size());
}

TEST(SelectiveStepHeuristic, TokensAreSummedAsByTheOtherKernels) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < kProblems; ++i) {
        const SelectiveStepProblem problem = random_step(random);
        const SelectiveStepChoice choice = selective_step_tokens_choice(problem), other = selective_step_choice(problem, {});
        ASSERT_NE(std::ranges::find(kTokenSteps, choice.config), kTokenSteps.end()) << to_text(choice.config);
        ASSERT_EQ(choice.config.aligned(), problem.aligned);
        ASSERT_EQ(choice.config.vector, other.config.vector);
        ASSERT_EQ(choice.lanes, std::max(other.lanes, choice.config.fewest_lanes()));
        ASSERT_GE(choice.lanes * choice.config.elements(), problem.columns);
        ASSERT_LE(choice.rows(), choice.config.most_rows());
        ASSERT_GE(selective_step_blocks(problem, choice)[2], problem.sequences) << "a block has one sequence";
        chosen.insert(to_text(choice.config));
    }
    EXPECT_EQ(chosen.size(), kTokenSteps.size());
}

TEST(SelectiveStepHeuristic, LanesCoverARowAndBlocksCoverTheBatch) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const SelectiveStepProblem problem = random_step(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const SelectiveStepChoice choice = selective_step_choice(problem, device);
        ASSERT_EQ(choice.config.state, problem.state);
        ASSERT_EQ(choice.config.aligned(), problem.aligned);
        ASSERT_GE(choice.lanes * choice.config.elements(), problem.columns);
        ASSERT_EQ(32 % choice.lanes, 0);
        ASSERT_TRUE(problem.tokens == 1 || choice.block_sequences == 1) << "a block has tokens or sequences";
        ASSERT_LE(choice.block_sequences, std::min<i64>(problem.sequences, SelectiveStepConfig::most_sequences()));
        ASSERT_LE(choice.rows(), choice.config.most_rows());
        ASSERT_TRUE(!choice.direct || (problem.may_be_direct() && choice.block_sequences == 1));
        const Blocks blocks = selective_step_blocks(problem, choice);
        ASSERT_GE(blocks[0] * choice.rows(), problem.group_rows);
        ASSERT_GE(blocks[2] * choice.block_sequences, problem.sequences);
        ASSERT_NE(explain_selective_step(problem, device), "");
        for (const SelectiveStepChoice& other : selective_step_candidates(problem, device)) {
            ASSERT_EQ(other.config, choice.config);
            ASSERT_LE(other.block_sequences, std::min<i64>(problem.sequences, SelectiveStepConfig::most_sequences()));
            ASSERT_TRUE(fits_grid(selective_step_blocks(problem, other)));
            ASSERT_TRUE(!other.direct || (problem.may_be_direct() && other.block_sequences == 1));
        }
    }
}

TEST(SelectiveStepHeuristic, CandidatesAreAllNumbersOfSequencesAndAWinnerDecides) {
    const SelectiveStepProblem problem{256, 1, 1, 5120, 16, DType::f32, true, true, true};
    const std::vector<SelectiveStepChoice> all = selective_step_candidates(problem, {});
    ASSERT_EQ(all.front(), selective_step_choice(problem, {}));
    EXPECT_EQ(all.size(), 7u) << "1 to 32, and the direct kernel";
    SelectiveStepWinners winners;
    winners.all = {{problem, all.back(), 3, 4}};
    EXPECT_EQ(selective_step_choice(problem, {}, &winners), all.back());
    EXPECT_NE(explain_selective_step(problem, {}, &winners).find("tuned on this device: {.lanes = "), std::string::npos);
    EXPECT_EQ(selective_step_candidates({256, 4, 1, 5120, 16, DType::f32, true, true, true}, {}).size(), 1u)
        << "several tokens";
}

TEST(SelectiveStepHeuristic, FewSequencesGoDirectly) {
    const auto is_direct = [](i64 sequences, i64 tokens, bool aligned, bool near) {
        return selective_step_choice({sequences, tokens, 1, 5120, 16, DType::f32, aligned, near, true}, device_of(132)).direct;
    };
    EXPECT_TRUE(is_direct(1, 1, true, true));
    EXPECT_FALSE(is_direct(256, 1, true, true));
    EXPECT_FALSE(is_direct(1, 4, true, true));
    EXPECT_FALSE(is_direct(1, 1, false, true));
    EXPECT_FALSE(is_direct(1, 1, true, false));
}

TEST(SelectiveStepHeuristic, LongRowsOfFullGpus) {
    const auto choice = [](i64 sequences, DType state) {
        return selective_step_choice({sequences, 1, 128, 64, 128, state, true, true, true}, device_of(132));
    };
    EXPECT_TRUE(choice(16, DType::f32).direct);
    EXPECT_FALSE(choice(64, DType::f32).direct);
    EXPECT_EQ(choice(256, DType::f32).block_sequences, SelectiveStepConfig::most_sequences());
    EXPECT_EQ(choice(256, DType::bf16).block_sequences, 8);
    EXPECT_EQ(choice(32, DType::bf16).block_sequences, SelectiveStepConfig::most_sequences());
}

TEST(SelectiveStepHeuristic, TheLargestBatchFitsTheGrid) {
    for (const i64 tokens : {1, 2}) {
        const SelectiveStepProblem problem{most_sequences(tokens), tokens, 1, 1, 1, DType::f32, false, false, false};
        EXPECT_TRUE(fits_grid(selective_step_blocks(problem, selective_step_choice(problem, device_of(160)))));
    }
}

}  // namespace
}  // namespace gdn_cuda::scan
