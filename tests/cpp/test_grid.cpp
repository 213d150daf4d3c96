// Grids from 64-bit sizes.
#include <gtest/gtest.h>

#include "launch/grid.hpp"

namespace gdn_cuda {
namespace {

TEST(Grid, SizesThatFitAreConverted) {
    EXPECT_EQ(grid_of("gdn", "mn_major", {2147483647, 65535, 65535}), (std::array{2147483647U, 65535U, 65535U}));
    EXPECT_EQ(grid_of("gdn", "mn_major", {0, 1, 1}), (std::array{0U, 1U, 1U}));  // the launch refuses an empty grid
}

TEST(Grid, SizesThatDoNotFitAreRefusedNotTruncated) {
    const i64 wraps = (i64{1} << 32) + 1;  // 1 in 32 bits
    for (const Blocks& blocks : {Blocks{wraps, 1, 1}, Blocks{2147483648, 1, 1}, Blocks{1, 65536, 1}, Blocks{1, wraps, 1},
                                 Blocks{1, 1, 65536}, Blocks{1, 1, wraps}, Blocks{-1, 1, 1}}) {
        EXPECT_FALSE(fits_grid(blocks));
        EXPECT_THROW(grid_of("gdn", "mn_major", blocks), std::invalid_argument);
    }
}

TEST(Grid, TheErrorNamesTheKernel) {
    try {
        grid_of("gdn", "mn_major", {4294967297, 1, 1});
        FAIL();
    } catch (const std::invalid_argument& error) {
        EXPECT_STREQ(error.what(),
                     "gdn/mn_major: grid: expected at most (2147483647, 65535, 65535) blocks, got (4294967297, 1, 1) "
                     "blocks");
    }
}

}  // namespace
}  // namespace gdn_cuda
