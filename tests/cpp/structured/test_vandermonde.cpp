// Configurations of structured/vandermonde and structured/vandermonde_moments.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "families/structured/vandermonde.hpp"
#include "families/structured/vandermonde_moments.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::structured {
namespace {

TEST(VandermondeHeuristic, ChoosesWhatIsRegisteredAndCoversEveryStep) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const VandermondeProblem problem{.rows = random.size(4096),
                                         .steps = random.size(1 << 20),
                                         .io = random.one_of({DType::c64, DType::c128}),
                                         .poles = random.size(200)};
        const VandermondeConfig config = vandermonde_config(problem, device_of(random.one_of({46, 108, 132, 160})));
        ASSERT_TRUE(in(kVandermondeConfigurations, config)) << to_text(config);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_GE(vandermonde_blocks(problem, config) * config.square(), problem.rows * problem.steps);
        ASSERT_LE(Vandermonde::shared_bytes(config), kSharedBytesEverywhere);
        ASSERT_NE(explain_vandermonde(problem, {}).find("steps a block"), std::string::npos);
    }
}

TEST(VandermondeHeuristic, CandidatesAreAllSquaresOfTheDtypeAndAWinnerDecides) {
    for (const DType io : {DType::c64, DType::c128})
        for (const i64 rows : {1, 40, 4096}) {
            const VandermondeProblem problem{.rows = rows, .steps = 16384, .io = io, .poles = 32};
            const std::vector<VandermondeConfig> all = vandermonde_candidates(problem, {});
            ASSERT_EQ(all.front(), vandermonde_config(problem, {}));
            for (const VandermondeConfig& config : kVandermondeConfigurations)
                EXPECT_EQ(std::ranges::count(all, config), config.io == io) << to_text(config);
            VandermondeWinners winners;
            winners.all = {{problem, all.back(), 3, 4}};
            EXPECT_EQ(vandermonde_config(problem, {}, &winners), all.back());
            EXPECT_NE(explain_vandermonde(problem, {}, &winners).find("tuned on this device: {.io = "), std::string::npos);
            EXPECT_TRUE(winners.used.load());
        }
}

TEST(VandermondeHeuristic, AFullCardTakesLargeSquaresAndFewOrShortRowsSmallOnes) {
    const VandermondeProblem s4d{.rows = 1024, .steps = 16384, .io = DType::c64};
    EXPECT_EQ(vandermonde_config(s4d, {}).side, 128);
    EXPECT_EQ(explain_vandermonde(s4d, {}),
              "tables of 128 by 128 powers give 16384 steps a block: 1024 blocks for 132 multiprocessors");
    for (const auto& [rows, steps, side] :
         {std::tuple{4, 16384, 32}, {1024, 1000, 32}, {1024, 4096, 64}, {64, 16384, 64}, {1024, 8192, 64}, {1024, 8193, 128}})
        EXPECT_EQ(vandermonde_config({.rows = rows, .steps = steps, .io = DType::c64}, {}).side, side) << rows << ' ' << steps;
}

TEST(VandermondeMomentsHeuristic, ChoosesWhatIsRegisteredAndCoversEveryStep) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const VandermondeMomentsProblem problem{.rows = random.size(4096),
                                                .steps = random.size(1 << 20),
                                                .io = random.one_of({DType::c64, DType::c128}),
                                                .orders = random.one_of({1, 2}),
                                                .poles = random.size(200)};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const VandermondeMomentsConfig config = vandermonde_moments_config(problem, device);
        ASSERT_TRUE(in(kVandermondeMomentsConfigurations, config)) << to_text(config);
        ASSERT_EQ(config.orders, problem.orders);
        ASSERT_GE(vandermonde_moments_squares(config, problem.steps) * config.square(), problem.steps);
        ASSERT_LE(VandermondeMoments::shared_bytes(config), kSharedBytesEverywhere);
        ASSERT_NE(explain_vandermonde_moments(problem, device).find(fmt::format("{} steps", config.square())),
                  std::string::npos);
    }
}

TEST(VandermondeMomentsHeuristic, SquaresAreNotMostlyPastTheLastStep) {
    for (const auto& [rows, steps, side] : {std::tuple{1024, 16384, 128},
                                            {1024, 4096, 64},
                                            {1024, 1000, 32},
                                            {1024, 12288, 64},
                                            {1024, 12289, 128},
                                            {4, 16384, 32}})
        EXPECT_EQ(vandermonde_moments_config({rows, steps, DType::c64, 2, 64}, {}).side, side) << rows << ' ' << steps;
}

}  // namespace
}  // namespace gdn_cuda::structured
