// How diagonal scans are shared out: registered configurations, every token in one part, few long rows spread.
#include <gtest/gtest.h>

#include "families/scan/diagonal_scan.hpp"
#include "families/scan/diagonal_scan_backward.hpp"
#include "families/scan/diagonal_scan_parts.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

TEST(DiagonalScanHeuristic, PartsAreWholeTilesAndCoverEveryToken) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const DiagonalProblem problem{.rows = random.size(1 << 20),
                                      .length = random.one_of({i64{0}, random.size(1 << 10), random.size(1 << 30)}),
                                      .varying = random.one_of({true, false})};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const int threads = diagonal_threads(problem);
        const DiagonalParts parts = diagonal_parts(problem, device);
        ASSERT_TRUE(in(DiagonalScan::kConfigurations, (DiagonalScanConfig{threads, problem.varying})));
        ASSERT_TRUE(in(DiagonalScanBackward::kConfigurations, (DiagonalScanBackwardConfig{threads, problem.varying})));
        ASSERT_GE(parts.parts, 1);
        ASSERT_LE(parts.parts, 64);
        ASSERT_EQ(parts.part_tokens % (threads * kDiagonalTokens), 0);
        ASSERT_GE(i64{parts.parts} * parts.part_tokens, problem.length);
        if (parts.parts > 1) {
            ASSERT_EQ(threads, kDiagonalThreads) << "the only configuration of scan/diagonal_scan_parts";
            ASSERT_LT(i64{parts.parts - 1} * parts.part_tokens, problem.length) << "no part is empty";
            ASSERT_LT(problem.rows, 2 * device.multiprocessors);
        }
        ASSERT_FALSE(explain_diagonal_parts(problem, device).empty());
    }
}

TEST(DiagonalScanHeuristic, ManyRowsHaveABlockEachAndFewLongOnesSeveral) {
    const jit::DeviceTraits h200 = device_of(132);
    EXPECT_EQ(diagonal_parts({.rows = 1024, .length = 1 << 20, .varying = true}, h200).parts, 1);
    EXPECT_EQ(diagonal_parts({.rows = 64, .length = 131072, .varying = true}, h200).parts, 9);
    EXPECT_EQ(diagonal_parts({.rows = 1, .length = 1 << 20, .varying = true}, h200).parts, 64);
    EXPECT_EQ(diagonal_parts({.rows = 64, .length = 1024, .varying = true}, h200).parts, 1) << "too short to share";
    EXPECT_NE(explain_diagonal_parts({.rows = 64, .length = 131072, .varying = true}, h200).find("shared by 9 blocks"),
              std::string::npos);
}

}  // namespace
}  // namespace gdn_cuda::scan
