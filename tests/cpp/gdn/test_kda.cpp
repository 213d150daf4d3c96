// The windows of chunks in which Kimi Delta Attention runs.
#include <gtest/gtest.h>

#include "families/gdn/kda_window.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(KdaWindow, BoundsMemory) {
    for (const i64 positions : {0, 1, 2, 17, 500, 1 << 20})
        for (int heads = 0; heads <= 300; ++heads) {
            const i64 window = kda_window(positions, heads);
            EXPECT_GE(window, 1);
            EXPECT_LE(window, std::max<i64>(positions, 1));
            EXPECT_LE(window * heads, kKdaMostRecords);
        }
}

TEST(KdaWindow, IsAllChunksIfTheirRecordsFit) {
    EXPECT_EQ(kda_window(128, 64), 128);
    EXPECT_EQ(kda_window(129, 64), 128);
    EXPECT_EQ(kda_window(512, 16), 512);
    EXPECT_EQ(kda_window(1000, 10000), 1);
}

}  // namespace
}  // namespace gdn_cuda::gdn
