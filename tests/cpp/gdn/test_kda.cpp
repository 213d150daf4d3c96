// The windows of chunks in which Kimi Delta Attention runs.
#include <gtest/gtest.h>

#include "families/gdn/kda_window.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr int kOnH200 = 132;  // multiprocessors

TEST(KdaWindow, L2HoldsItsRecords) {
    for (const i64 positions : {1, 2, 17, 500, 1 << 20})
        for (int heads = 1; heads <= 300; ++heads) {
            const int window = kda_window(positions, heads, kOnH200);
            EXPECT_GE(window, 1);
            EXPECT_LE(window, positions);
            EXPECT_TRUE(window == 1 || window * heads * kKdaBytesInL2 <= kKdaMostBytesInL2) << heads;
        }
}

TEST(KdaWindow, FillsWavesOfBlocks) {
    EXPECT_EQ(kda_window(1000, 64, kOnH200), 4);   // 256 blocks of 264
    EXPECT_EQ(kda_window(1000, 12, kOnH200), 22);  // 264
    EXPECT_EQ(kda_window(1000, 24, kOnH200), 11);
    EXPECT_EQ(kda_window(3, 12, kOnH200), 3);
    EXPECT_EQ(kda_window(1000, 1000, kOnH200), 1);
}

}  // namespace
}  // namespace gdn_cuda::gdn
