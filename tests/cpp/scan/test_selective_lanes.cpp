// Which problems scan/selective_lanes computes, and its configurations.
#include <gtest/gtest.h>

#include "families/scan/selective_lanes.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

constexpr SelectiveForwardProblem problem_of(i64 channels, int states) {
    return {
        .transition = Transition::exponential, .is_complex = false, .is_narrow = true, .states = states, .channels = channels};
}

TEST(SelectiveLanesHeuristic, ChoosesWhatIsRegistered) {
    Random random;
    for (int i = 0; i < kProblems; ++i)
        if (const auto config = selective_lanes_config(problem_of(random.size(1 << 16), static_cast<int>(random.size(64))),
                                                       random.one_of({46, 108, 132, 160}))) {
            ASSERT_TRUE(in(kSelectiveLanesConfigurations, *config)) << to_text(*config);
        }
}

TEST(SelectiveLanesHeuristic, TakesFewChannelsAndManyStates) {
    for (const int multiprocessors : {46, 108, 132, 160}) {
        EXPECT_TRUE(selective_lanes_config(problem_of(multiprocessors, 16), multiprocessors));
        EXPECT_FALSE(selective_lanes_config(problem_of(i64{multiprocessors} * 1000, 16), multiprocessors));
        EXPECT_TRUE(selective_lanes_config(problem_of(i64{multiprocessors} * 1000, 64), multiprocessors));
        EXPECT_FALSE(selective_lanes_config(problem_of(i64{multiprocessors} * 28, 16), multiprocessors));
        EXPECT_TRUE(selective_lanes_config(problem_of(i64{multiprocessors} * 38, 16), multiprocessors))
            << "a wave and a part of blocks that take turns";
    }
}

TEST(SelectiveLanesHeuristic, FitsEveryGpu) {
    for (const SelectiveLanesConfig& config : kSelectiveLanesConfigurations) {
        EXPECT_LE(SelectiveLanes::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        EXPECT_EQ(config.lanes * config.tokens % kStateChunk, 0) << "a tile is whole chunks";
        EXPECT_EQ(from_text<SelectiveLanesConfig>(to_text(config)), config);
    }
}

}  // namespace
}  // namespace gdn_cuda::scan
