// Configurations of scan/selective_backward: registered, every channel and state covered, within the shared memory of every
// GPU.
#include <gtest/gtest.h>

#include <numeric>

#include "families/scan/selective_backward.hpp"
#include "families/scan/selective_backward_sums.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

SelectiveBackwardProblem random_problem(Random& random) {
    using enum Transition;
    const bool is_complex = random.one_of({true, false});
    const i64 groups_B = random.size(6), groups_C = random.size(6), channels = random.size(512);
    const i64 dim = groups_B * groups_C * channels;
    return {.transition = is_complex ? random.one_of({exponential, zoh, bilinear})
                                     : random.one_of({exponential, zoh, bilinear, s7, rglru}),
            .is_complex = is_complex,
            .varies = random.one_of({true, false}),
            .is_narrow = random.one_of({true, false}),
            .state_size = random.size(kMaxStates),
            .sequences = random.size(64),
            .channels_per_span = std::gcd(groups_B * channels, groups_C * channels),
            .dim = dim};
}

TEST(SelectiveBackwardHeuristic, ChoosesWhatIsRegisteredAndCoversEveryChannelAndState) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const SelectiveBackwardProblem problem = random_problem(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const SelectiveBackwardConfig config = selective_backward_config(problem);
        ASSERT_TRUE(in(kSelectiveBackwardConfigurations, config)) << to_text(config);
        ASSERT_EQ(config.transition, problem.transition);
        ASSERT_EQ(config.is_complex, problem.is_complex);
        ASSERT_TRUE(problem.varies || !config.only_varying) << "constant B or C";
        ASSERT_TRUE(!config.only_varying || config.is_narrow == problem.is_narrow);
        const i64 spans = problem.dim / problem.channels_per_span, blocks = selective_backward_blocks(problem, config);
        ASSERT_EQ(problem.dim % problem.channels_per_span, 0);
        ASSERT_EQ(blocks % spans, 0) << "no block crosses a span";
        ASSERT_GE(blocks / spans * config.channels_per_block(), problem.channels_per_span);
        ASSERT_LT((blocks / spans - 1) * config.channels_per_block(), problem.channels_per_span);
        const std::string why = explain_selective_backward(problem, {}, device);
        const i64 passes = ceil_div(problem.state_size, config.group());
        ASSERT_NE(why.find(fmt::format("{} pass{} over {} states", passes, passes == 1 ? "" : "es", problem.state_size)),
                  std::string::npos)
            << why;
    }
}

TEST(SelectiveBackwardHeuristic, TakesLanesWhereThereAreManyStatesAndBAndCVary) {
    SelectiveBackwardProblem mamba{.transition = Transition::exponential,
                                   .is_complex = false,
                                   .varies = true,
                                   .is_narrow = true,
                                   .state_size = 16,
                                   .sequences = 8,
                                   .channels_per_span = 5120,
                                   .dim = 5120};
    EXPECT_EQ(selective_backward_config(mamba).channels_per_block(), 32);
    EXPECT_TRUE(selective_backward_config(mamba).only_varying && selective_backward_config(mamba).is_narrow);
    mamba.state_size = 64;
    EXPECT_EQ(selective_backward_config(mamba).group(), 32);
    mamba.varies = false;
    EXPECT_EQ(selective_backward_config(mamba).group(), 16);
}

TEST(SelectiveBackwardHeuristic, FitsEveryGpuAndADozenConfigurations) {
    EXPECT_LE(kSelectiveBackwardConfigurations.size(), 13);  // complex states of 16-bit tensors are the 13th
    for (const SelectiveBackwardConfig& config : kSelectiveBackwardConfigurations) {
        EXPECT_LE(SelectiveBackward::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        EXPECT_GT(SelectiveBackward::shared_bytes(config), 0) << to_text(config);
        EXPECT_EQ(from_text<SelectiveBackwardConfig>(to_text(config)), config);
    }
}

TEST(SelectiveBackwardHeuristic, TakesAsManySequencesAtATimeAsTheirSumsAllow) {
    EXPECT_EQ(sequences_at_a_time(8, kMostSumsBytes / 8), 8);
    EXPECT_EQ(sequences_at_a_time(8, kMostSumsBytes / 3), 3);
    EXPECT_EQ(sequences_at_a_time(8, kMostSumsBytes * 2), 1);
    EXPECT_EQ(sequences_at_a_time(100'000, 0), 65535) << "what a grid allows";
    EXPECT_EQ(sequences_at_a_time(0, 0), 1);
}

TEST(SelectiveBackwardSums, HasAThreadForASumUpToItsMostBlocksAndSkipsEmptyGradients) {
    SelectiveBackwardSumsArgs args;
    SelectiveBackwardSums::add(args, {.partials = 3, .rows = 2, .groups = 1, .tokens = 100, .columns = 16, .pitch = 16});
    SelectiveBackwardSums::add(args, {.partials = 3, .rows = 0});
    SelectiveBackwardSums::add(args, {.partials = 0, .groups = 7});
    EXPECT_EQ(args.count, 2);
    EXPECT_EQ(SelectiveBackwardSums::blocks(args), 25);
    SelectiveBackwardSums::add(args, {.partials = 1, .rows = 1 << 20, .groups = 1 << 10, .tokens = 1 << 10});
    EXPECT_EQ(SelectiveBackwardSums::blocks(args), 1 << 16);
}

}  // namespace
}  // namespace gdn_cuda::scan
