// What the kernels of Hyena's steps and filters are configured with.
#include <gtest/gtest.h>

#include "families/conv/hyena_filter.hpp"
#include "families/conv/hyena_step.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::conv {
namespace {

TEST(HyenaFirStepHeuristic, ChoosesWhatIsRegisteredForEveryFilter) {
    for (int taps = 1; taps <= kMostFirTaps; ++taps) {
        const HyenaFirStepConfig config = HyenaFirStep::config_for(taps);
        EXPECT_TRUE(in(HyenaFirStep::kConfigurations, config)) << to_text(config);
        EXPECT_GE(config.most_taps(), taps);
        EXPECT_EQ(32 % config.lanes, 0);
    }
    EXPECT_EQ(HyenaFirStep::config_for(3).lanes, 1);
    EXPECT_EQ(HyenaFirStep::config_for(128).elements, 4);
}

TEST(HyenaFilterHeuristic, BlocksCoverEveryToken) {
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 0), 0);
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 4096), 3);
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 4097), 6);
    EXPECT_EQ(HyenaFilterBackwardKernel::blocks(3, 17, 16385), 3 * 2 * 2);
}

}  // namespace
}  // namespace gdn_cuda::conv
