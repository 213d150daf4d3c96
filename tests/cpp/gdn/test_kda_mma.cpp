// The heuristic of gdn/kda_mma: its configurations are registered and fit every GPU; and which calls with a gate for every
// channel it gets.
#include <gtest/gtest.h>

#include "families/gdn/kda_mma.hpp"
#include "families/gdn/prefill_kernel.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(KdaMmaHeuristic, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RandomShape like = random_shape(random);
        const ChunkedProblem problem{
            .sequences = like.sequences, .heads = like.heads, .dk = like.dk, .dv = like.dv, .io = like.io, .state = like.state};
        for (const DType gate : {like.io, DType::f32}) {
            const KdaMmaConfig config = kda_mma_config(problem, gate);
            ASSERT_NE(std::ranges::find(kKdaMmaConfigurations, config), kKdaMmaConfigurations.end()) << to_text(config);
            ASSERT_GE(config.head_k, problem.dk);
            ASSERT_GE(config.warps * kKdaMmaWarpChannels, config.head_k) << "channels without a warp";
            ASSERT_EQ(config.io, problem.io);
            ASSERT_EQ(config.gate, gate);
            ASSERT_LE(KdaMma::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
            ASSERT_NE(explain_kda_mma(problem, config, {}), "");
        }
    }
}

TEST(ChannelKernel, HopperHasItsOwnAndTheRestShareOne) {
    using Wanted = WantedPrefill;
    EXPECT_EQ(channel_kernel(true, true, 90, Wanted::automatic), PrefillKernel::channels);
    EXPECT_EQ(channel_kernel(false, true, 90, Wanted::automatic), PrefillKernel::channels) << "more sequences than a grid has";
    EXPECT_EQ(channel_kernel(true, false, 90, Wanted::automatic), PrefillKernel::channels_mma) << "long keys";
    EXPECT_EQ(channel_kernel(true, true, 90, Wanted::mma), PrefillKernel::channels_mma);
    EXPECT_EQ(channel_kernel(true, true, 90, Wanted::recurrent), PrefillKernel::recurrent);
    EXPECT_EQ(channel_kernel(false, false, 90, Wanted::automatic), PrefillKernel::recurrent);
    for (const int capability : {80, 86, 89, 100, 120}) {
        EXPECT_EQ(channel_kernel(true, true, capability, Wanted::automatic), PrefillKernel::channels_mma) << capability;
        EXPECT_EQ(channel_kernel(false, true, capability, Wanted::automatic), PrefillKernel::recurrent) << capability;
    }
    EXPECT_EQ(channel_kernel(true, true, 75, Wanted::mma), PrefillKernel::recurrent);
    for (const bool fits : {false, true})
        for (const Wanted wanted : {Wanted::automatic, Wanted::mma, Wanted::recurrent})
            EXPECT_NE(explain_channel_kernel(fits, fits, 90, wanted), "");
}

}  // namespace
}  // namespace gdn_cuda::gdn
