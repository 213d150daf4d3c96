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
            .plain = random.one_of({true, false}),
            .tied = random.one_of({true, false})};
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
        ASSERT_TRUE(choice.row_steps == 0 || (problem.may_be_tied() && choice.block_sequences == 1 && !choice.direct));
        const Blocks blocks = selective_step_blocks(problem, choice);
        ASSERT_GE(blocks[0] * choice.rows() * std::max(choice.row_steps, 1), problem.group_rows);
        ASSERT_GE(blocks[2] * choice.block_sequences, problem.sequences);
        ASSERT_NE(explain_selective_step(problem, device), "");
        for (const SelectiveStepChoice& other : selective_step_candidates(problem, device)) {
            ASSERT_EQ(other.config, choice.config);
            ASSERT_LE(other.block_sequences, std::min<i64>(problem.sequences, SelectiveStepConfig::most_sequences()));
            ASSERT_TRUE(fits_grid(selective_step_blocks(problem, other)));
            ASSERT_TRUE(!other.direct || (problem.may_be_direct() && other.block_sequences == 1));
            ASSERT_TRUE(other.row_steps == 0 || (problem.may_be_tied() && other.block_sequences == 1 && !other.direct));
            ASSERT_LE(other.row_steps, other.lanes) << "each lane has the scalars of one step";
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

SelectiveStepProblem mamba_2(i64 sequences, int columns, DType state) {
    return {.sequences = sequences,
            .tokens = 1,
            .groups = 8,
            .group_rows = 512,
            .columns = columns,
            .state = state,
            .aligned = true,
            .near = true,
            .plain = true,
            .tied = true};
}

TEST(SelectiveStepHeuristic, ManyRowsWithOneValueOfAHaveTheirKernel) {
    const jit::DeviceTraits device = device_of(132);
    std::set<std::string> configurations;
    for (const TiedStepConfig& config : kTiedSteps) configurations.insert(to_text(config));
    for (const DType state : {DType::f32, DType::bf16, DType::f16}) {
        for (const int columns : {64, 128, 256}) {
            const SelectiveStepProblem problem = mamba_2(256, columns, state);
            const SelectiveStepChoice choice = selective_step_choice(problem, device);
            const TiedStepConfig config{state, columns};
            EXPECT_EQ(choice.row_steps, std::min(8, choice.lanes));
            EXPECT_EQ(config.row(), choice.config) << "rows are summed in the order of the other kernels";
            EXPECT_EQ(config.lanes(), choice.lanes);
            EXPECT_TRUE(configurations.contains(to_text(config)));
        }
        EXPECT_TRUE(selective_step_choice(mamba_2(1, 128, state), device).direct);
        EXPECT_EQ(selective_step_choice(mamba_2(1, 128, state), device).row_steps, 0);
    }
    for (const int columns : {64, 128, 256})  // int8 states have no other kernel
        for (const i64 sequences : {1, 64, 256}) {
            const SelectiveStepProblem problem = mamba_2(sequences, columns, DType::i8);
            const SelectiveStepChoice choice = selective_step_choice(problem, device);
            EXPECT_GE(choice.row_steps, 1);
            EXPECT_LE(choice.row_steps, std::min(8, choice.lanes));
            EXPECT_FALSE(choice.direct);
            EXPECT_EQ(choice.lanes, TiedStepConfig({DType::i8, columns}).lanes());
            EXPECT_TRUE(configurations.contains(to_text(TiedStepConfig{DType::i8, columns})));
            for (const SelectiveStepChoice& candidate : selective_step_candidates(problem, device))
                EXPECT_TRUE(candidate.row_steps > 0 && !candidate.direct && candidate.block_sequences == 1);
        }
    EXPECT_EQ(selective_step_choice(mamba_2(8, 128, DType::f32), device).row_steps, 4) << "three blocks an SM";
    EXPECT_NE(explain_selective_step(mamba_2(64, 128, DType::f32), device).find("8 row steps"), std::string::npos);
    for (auto change :
         {+[](SelectiveStepProblem& x) { x.tokens = 2; }, +[](SelectiveStepProblem& x) { x.aligned = false; },
          +[](SelectiveStepProblem& x) { x.tied = false; }, +[](SelectiveStepProblem& x) { x.columns = 96; },
          +[](SelectiveStepProblem& x) { x.state = DType::c64; }, +[](SelectiveStepProblem& x) { x.group_rows = 16; }}) {
        SelectiveStepProblem problem = mamba_2(256, 128, DType::f32);
        change(problem);
        EXPECT_EQ(selective_step_choice(problem, device).row_steps, 0);
    }
}

TEST(SelectiveStepHeuristic, TheLargestBatchFitsTheGrid) {
    for (const i64 tokens : {1, 2}) {
        const SelectiveStepProblem problem{most_sequences(tokens), tokens, 1, 1, 1, DType::f32, false, false, false};
        EXPECT_TRUE(fits_grid(selective_step_blocks(problem, selective_step_choice(problem, device_of(160)))));
    }
}

}  // namespace
}  // namespace gdn_cuda::scan
