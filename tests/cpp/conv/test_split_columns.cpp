// What conv/split_columns is configured with.
#include <gtest/gtest.h>

#include "families/conv/split_columns.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::conv {
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

TEST(SplitColumnsHeuristic, SegmentsCoverAllTokens) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        CausalArgs conv;
        conv.batches = static_cast<int>(1 + random.size(64));
        conv.channels = static_cast<int>(8 * (1 + random.size(2048)));
        conv.tokens = static_cast<int>(1 + random.size(1 << 20));
        const SplitColumnsConfig config = split_columns_config(DType::bf16, {.dk = 128}, false);
        const i64 groups = i64{conv.batches} * ceil_div(conv.channels, config.channels()),
                  tokens = i64{SplitColumns::segment(config, conv)} * (config.threads() / 32);
        ASSERT_GE(SplitColumns::blocks(config, conv)[0] / groups * tokens, conv.tokens);
    }
}

}  // namespace
}  // namespace gdn_cuda::conv
