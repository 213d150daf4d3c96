// How diagonal scans split rows: registered configurations, every token in one part, few long rows split over blocks.
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
                                      .varying = random.one_of({true, false}),
                                      .reverse = random.one_of({true, false})};
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
        for (const DiagonalParts& other : diagonal_candidates(problem, device)) {
            ASSERT_GE(i64{other.parts} * other.part_tokens, problem.length);
            ASSERT_EQ(other.part_tokens % (threads * kDiagonalTokens), 0);
            ASSERT_TRUE(other.parts == 1 || i64{other.parts - 1} * other.part_tokens < problem.length) << to_text(other);
            ASSERT_TRUE(other.parts == 1 || threads == kDiagonalThreads);
        }
    }
}

TEST(DiagonalScanHeuristic, AWinnerDecidesAboutItsDirection) {
    const DiagonalProblem problem{.rows = 64, .length = 131072, .varying = true, .reverse = false};
    const std::vector<DiagonalParts> all = diagonal_candidates(problem, {});
    ASSERT_EQ(all.front(), diagonal_parts(problem, {}));
    EXPECT_EQ(all.size(), 8u) << "1 to 64, and the heuristic's nine";
    DiagonalWinners winners;
    winners.all = {{problem, all.back(), 3, 4}};
    EXPECT_EQ(diagonal_parts(problem, {}, &winners), all.back());
    EXPECT_NE(explain_diagonal_parts(problem, {}, &winners).find("tuned on this device: {.parts = 64"), std::string::npos);
    DiagonalProblem backward = problem;
    backward.reverse = true;
    EXPECT_EQ(diagonal_parts(backward, {}, &winners), diagonal_parts(backward, {}));
}

TEST(DiagonalScanHeuristic, ManyRowsHaveABlockEachAndFewLongOnesSeveral) {
    const jit::DeviceTraits h200 = device_of(132);
    EXPECT_EQ(diagonal_parts({.rows = 1024, .length = 1 << 20, .varying = true}, h200).parts, 1);
    EXPECT_EQ(diagonal_parts({.rows = 64, .length = 131072, .varying = true}, h200).parts, 9);
    EXPECT_EQ(diagonal_parts({.rows = 1, .length = 1 << 20, .varying = true}, h200).parts, 64);
    EXPECT_EQ(diagonal_parts({.rows = 64, .length = 1024, .varying = true}, h200).parts, 1) << "too short to split";
    EXPECT_NE(explain_diagonal_parts({.rows = 64, .length = 131072, .varying = true}, h200).find("shared by 9 blocks"),
              std::string::npos);
}

}  // namespace
}  // namespace gdn_cuda::scan
