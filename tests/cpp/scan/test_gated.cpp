// Configurations of the kernels of RG-LRU and S7.
#include <gtest/gtest.h>

#include "families/scan/rglru.hpp"
#include "families/scan/rglru_backward.hpp"
#include "families/scan/s7.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

TEST(RglruHeuristic, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const bool channels_last : {false, true})
            for (const i64 states : {1, 2, 256}) {
                const RglruProblem problem{.io = io, .channels_last = channels_last, .states = states};
                const RglruConfig forward = rglru_config(problem), backward = rglru_backward_config(problem);
                EXPECT_TRUE(in(kRglruConfigurations, forward)) << to_text(forward);
                EXPECT_TRUE(in(kRglruBackwardConfigurations, backward)) << to_text(backward);
                EXPECT_LE(Rglru::shared_bytes(forward), kSharedBytesEverywhere);
                EXPECT_LE(RglruBackward::shared_bytes(backward), kSharedBytesEverywhere);
                EXPECT_LE(forward.threads(), 1024);
                EXPECT_LE(backward.threads(), 1024);
                // Backward starts its tiles from the states that forward stored.
                EXPECT_EQ(forward.tile(), backward.tile());
                EXPECT_EQ(forward.tile() % 32, 0);
            }
}

TEST(RglruHeuristic, BlocksHoldEveryChannelOnce) {
    const RglruConfig tokens = rglru_config({DType::bf16, false, 1}), channels = rglru_config({DType::bf16, true, 1});
    EXPECT_EQ(rglru_blocks(tokens, 3, 33), (Blocks{99, 1, 1}));
    EXPECT_EQ(rglru_blocks(channels, 3, 33), (Blocks{6, 1, 1}));
    EXPECT_EQ(rglru_blocks(channels, 3, 0), (Blocks{0, 1, 1}));
    EXPECT_NE(explain_rglru({DType::bf16, true, 1}, channels).find("32 channels a block"), std::string::npos);
    EXPECT_NE(explain_rglru({DType::bf16, false, 7}, tokens).find("7 states one after another"), std::string::npos);
}

TEST(S7Blocks, CoverEveryTokenAndRow) {
    const S7ProductConfig bf16{DType::bf16, true}, f32{DType::f32, true};
    EXPECT_EQ(s7_blocks(bf16, 257, 5, 2), (Blocks{2, 2, 2}));
    EXPECT_EQ(s7_blocks(f32, 256, 4, 2), (Blocks{2, 1, 2}));
}

}  // namespace
}  // namespace gdn_cuda::scan
