// Configurations and segments of the channels-last kernels layers/split_columns and conv/causal_conv_channels_last.
#include <gtest/gtest.h>

#include "families/layers/split_columns.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::layers {
namespace {

TEST(SplitColumnsHeuristic, AHeadIsLanesOfAWarp) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const SplitHeads heads{.key_heads = 1, .value_heads = 1, .dk = 1 << random.one_of({2, 3, 4, 5, 6, 7, 8}), .dv = 8};
        const SplitColumnsConfig config =
            split_columns_config(random.one_of({DType::bf16, DType::f16, DType::f32}), heads, random.one_of({true, false}));
        ASSERT_TRUE(in(kSplitColumnsConfigurations, config));
        ASSERT_EQ(config.channels() % heads.dk, 0);
        ASSERT_TRUE(heads.dk % config.lane_channels == 0);
    }
}

TEST(ChannelsLastHeuristic, BlocksCoverAllTokensAndChannels) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        conv::CausalArgs conv;
        conv.batches = static_cast<int>(1 + random.size(64));
        conv.channels = static_cast<int>(8 * (1 + random.size(2048)));
        conv.tokens = static_cast<int>(1 + random.size(1 << 20));
        const SplitColumnsConfig config = split_columns_config(DType::bf16, {.dk = 128}, false);
        const int segment = conv::column_segment(conv, config.channels(), device_of(random.one_of({46, 108, 132, 160})));
        const i64 warps = i64{conv.batches} * ceil_div(conv.channels, config.channels()) * ceil_div(conv.tokens, segment);
        ASSERT_EQ(conv::column_blocks(conv, segment, config)[0], ceil_div(warps, config.threads() / 32));
        ASSERT_TRUE(segment >= conv::kShortestSegment && segment <= conv::kLongestSegment);
    }
}

TEST(ChannelsLastHeuristic, ManyTokensTakeLongSegments) {
    const conv::CausalArgs many{.batches = 8, .channels = 8192, .tokens = 32768},
        few{.batches = 1, .channels = 128, .tokens = 500};
    EXPECT_EQ(conv::column_segment(many, 128, device_of(132)), conv::kLongestSegment);
    EXPECT_EQ(conv::column_segment(few, 128, device_of(132)), conv::kShortestSegment);
}

}  // namespace
}  // namespace gdn_cuda::layers
