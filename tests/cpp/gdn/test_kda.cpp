// The windows of chunks in which Kimi Delta Attention runs.
#include <gtest/gtest.h>

#include "families/gdn/kda_window.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr int kOnH200 = 132;  // multiprocessors

int window_of(i64 positions, i64 sequences, i64 heads) {
    return kda_window(positions, sequences, heads, 2, kOnH200);
}

TEST(KdaWindow, BoundsMemory) {
    for (const i64 positions : {1, 2, 17, 500, 1 << 20})
        for (int heads = 1; heads <= 300; ++heads)
            for (const i64 sequences : {1, 2, 40}) {
                const i64 window = window_of(positions, sequences, heads), buffers = window < positions ? 2 : 1;
                EXPECT_GE(window, 1);
                EXPECT_LE(window, positions);
                EXPECT_LE(buffers * window * heads, kKdaMostRecords);
            }
}

TEST(KdaWindow, OneUnlessOwnersLeaveHalfOfTheCard) {
    EXPECT_EQ(window_of(128, 1, 64), 128);
    EXPECT_EQ(window_of(256, 1, 64), 64);
    EXPECT_EQ(window_of(128, 1, 16), 43);
    EXPECT_EQ(window_of(90, 1, 16), 90);  // windows of 30 chunks would be too short
    EXPECT_EQ(window_of(256, 8, 16), 256);
    EXPECT_EQ(window_of(1000, 1, 10000), 1);
}

}  // namespace
}  // namespace gdn_cuda::gdn
