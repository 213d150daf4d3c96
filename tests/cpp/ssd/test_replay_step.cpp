// ssd/replay_step on the host.
#include <gtest/gtest.h>

#include "families/ssd/replay_step.hpp"
#include "support.hpp"

namespace gdn_cuda::ssd {
namespace {

constexpr ReplayStepProblem kNemotron{.sequences = 64,
                                      .tokens = 1,
                                      .heads = 128,
                                      .groups = 8,
                                      .channels = 64,
                                      .states = 128,
                                      .io = DType::bf16,
                                      .state = DType::f32};

jit::DeviceTraits with_multiprocessors(int count) {
    return {.multiprocessors = count};
}

TEST(SsdReplayStep, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const DType state : {DType::f32, DType::bf16, DType::f16, DType::i8})
            for (int states = 8; has_replay_step(io, state) && states <= kMostReplayStates; states += 8)
                for (int tokens = 0; tokens <= kMostRingTokens; ++tokens) {
                    const ReplayStepConfig config = replay_step_config(io, state, states, tokens);
                    ASSERT_NE(std::ranges::find(kReplayStepConfigurations, config), kReplayStepConfigurations.end());
                    ASSERT_LE(ReplayStep::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
                    ASSERT_GE(config.states, states);
                    ASSERT_GE(config.tokens, tokens);
                    ASSERT_LE(config.most_rows(), ReplayStepConfig::threads());
                }
}

TEST(SsdReplayStep, BlocksHaveRowsOfAsManyHeadsAsWarps) {
    for (int channels = 8; channels <= 256; channels += 8)
        for (const int heads : {1, 2, 3, 16})
            for (const int multiprocessors : {0, 132}) {
                ReplayStepProblem problem = kNemotron;
                problem.channels = channels, problem.heads = heads, problem.groups = 1;
                const int rows = replay_step_rows(problem, with_multiprocessors(multiprocessors));
                ASSERT_GE(rows, ReplayStepConfig::groups());
                ASSERT_LE(rows, replay_step_config(problem).most_rows());
                ASSERT_EQ(rows % ReplayStepConfig::groups(), 0);
                for (int first = 0; first < heads * channels; first += rows) {
                    const int last = std::min(first + rows, heads * channels) - 1;
                    ASSERT_LT(last / channels - first / channels, ReplayStepConfig::kHeads) << channels << " " << rows;
                }
            }
}

TEST(SsdReplayStep, FewSequencesAreSpreadOverTheGpu) {
    ReplayStepProblem problem = kNemotron;
    EXPECT_EQ(replay_step_rows(problem, with_multiprocessors(132)), 64);
    problem.state = DType::bf16;
    EXPECT_EQ(replay_step_rows(problem, with_multiprocessors(132)), 128);
    problem.sequences = 1;
    EXPECT_EQ(replay_step_rows(problem, with_multiprocessors(132)), 16);
}

}  // namespace
}  // namespace gdn_cuda::ssd
