// Which kernel and configuration causal_conv1d_update uses: a registered one that can run the problem.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "families/conv/causal_step.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::conv {
namespace {

CausalStepProblem random_step(Random& random) {
    const int width = random.one_of({1, 2, 3, 3, 4, 4, 5, kMaxStepWidth});
    return {.sequences = random.size(4096),
            .channels = 8 * random.size(2048),
            .width = width,
            .columns = width - 1 + random.one_of({0, 0, 1, 5}),
            .io = random.one_of({DType::f32, DType::bf16, DType::f16}),
            .state = random.one_of({DType::f32, DType::bf16, DType::f16}),
            .window = random.one_of({StateWindow::last, StateWindow::circular, StateWindow::verify}),
            .vectors = random.one_of({true, true, false}),
            .columns_vectors = random.one_of({true, false}),
            .channels_vectors = random.one_of({true, false})};
}

TEST(CausalStepHeuristic, ChoosesOnlyWhatIsRegisteredAndAllOfIt) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < 20 * kProblems; ++i) {
        const CausalStepProblem problem = random_step(random);
        const CausalStepChoice choice = causal_step_choice(problem, device_of(132));
        if (choice.kernel == CausalStepKernel::vectors) {
            const auto all = CausalStep::configurations();
            ASSERT_NE(std::ranges::find(all, causal_step_config(problem)), all.end());
            ASSERT_TRUE(problem.vectors && problem.columns_vectors);
            chosen.insert(to_text(causal_step_config(problem)));
        } else if (choice.kernel == CausalStepKernel::staged) {
            const auto all = CausalStepStaged::configurations();
            ASSERT_NE(std::ranges::find(all, causal_step_staged_config(problem)), all.end());
            ASSERT_TRUE(problem.vectors && problem.channels_vectors && problem.io == problem.state);
            ASSERT_EQ(problem.window, StateWindow::last) << "the kernel has no other";
            chosen.insert(to_text(causal_step_staged_config(problem)));
        }
    }
    EXPECT_EQ(chosen.size(), CausalStep::configurations().size() + CausalStepStaged::configurations().size());
}

TEST(CausalStepHeuristic, BlocksCoverTheBatchAndFitTheDeviceTogether) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const CausalStepProblem problem = random_step(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const CausalStepChoice choice = causal_step_choice(problem, device);
        const Blocks blocks = causal_step_blocks(problem, choice);
        ASSERT_GE(blocks[0] * choice.block_sequences, problem.sequences);
        ASSERT_LT((blocks[0] - 1) * choice.block_sequences, problem.sequences) << "a block has no sequence";
        ASSERT_GE(blocks[1] * causal_step_block_channels(problem, choice.kernel), problem.channels);
        ASSERT_NE(explain_causal_step(problem, device), "");
        if (choice.kernel == CausalStepKernel::any) continue;
        if (choice.block_sequences == 1) continue;
        ASSERT_LE((blocks[0] - 1) * blocks[1], device.multiprocessors * i64{kStepBlocks}) << "more than one wave";
    }
}

TEST(CausalStepHeuristic, TwoHundredFiftySixSequencesOfQwen3NextAreOneWave) {
    for (const bool rows : {true, false}) {
        const CausalStepProblem problem{.sequences = 256,
                                        .channels = 8192,
                                        .width = 4,
                                        .columns = 3,
                                        .io = DType::bf16,
                                        .state = DType::bf16,
                                        .window = StateWindow::last,
                                        .vectors = true,
                                        .columns_vectors = rows,
                                        .channels_vectors = !rows};
        const CausalStepChoice choice = causal_step_choice(problem, device_of(132));
        EXPECT_EQ(choice.kernel, rows ? CausalStepKernel::vectors : CausalStepKernel::staged);
        EXPECT_EQ(choice.block_sequences, 4);
        EXPECT_EQ(causal_step_blocks(problem, choice), (Blocks{64, 8, 1}));
    }
}

TEST(CausalStepTuning, CandidatesAreDistinctAndNoBlockIsWithoutASequence) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const CausalStepProblem problem = random_step(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const std::vector<CausalStepChoice> all = causal_step_candidates(problem, device);
        ASSERT_EQ(all.front(), causal_step_choice(problem, device));
        for (const CausalStepChoice& one : all) {
            ASSERT_EQ(std::ranges::count(all, one), 1);
            ASSERT_EQ(one.kernel, all.front().kernel);
            ASSERT_GT(problem.sequences, (causal_step_blocks(problem, one)[0] - 1) * one.block_sequences);
        }
        ASSERT_EQ(from_text<CausalStepProblem>(to_text(problem)), problem);
    }
}

}  // namespace
}  // namespace gdn_cuda::conv
