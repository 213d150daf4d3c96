// Configurations of structured/cauchy and its backward kernel: all registered, and every output covered.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "families/structured/cauchy.hpp"
#include "families/structured/cauchy_backward.hpp"
#include "families/structured/cauchy_batch.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::structured {
namespace {

CauchyProblem random_cauchy(Random& random) {
    const i64 shared = random.size(64);
    const bool conj = random.one_of({true, false});
    return {.rows = shared * random.size(4096),
            .shared_rows = shared,
            .points = random.size(1 << 20),
            .io = conj ? random.one_of({DType::c64, DType::c128})
                       : random.one_of({DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128}),
            .conj = conj,
            .poles = random.size(200)};
}

TEST(CauchyHeuristic, ChoosesWhatIsRegisteredAndCoversEveryOutput) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const CauchyProblem problem = random_cauchy(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const CauchyConfig config = cauchy_config(problem, device);
        ASSERT_TRUE(in(kCauchyConfigurations, config)) << to_text(config);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_EQ(config.conj, problem.conj);
        ASSERT_TRUE(!config.one_tile || problem.poles <= config.tile);
        ASSERT_EQ(problem.shared_rows % config.rows, 0) << "a block's rows have the same poles";
        ASSERT_GE(cauchy_blocks(problem, config) * config.rows * config.points_per_block(), problem.rows * problem.points);
        const int turns = cauchy_turns(problem, config, device);
        ASSERT_GE(turns, 1);
        ASSERT_TRUE(turns == 1 || cauchy_blocks(problem, config) / turns >= 64 * device.multiprocessors);
        const i64 blocks = cauchy_in_batches(problem)
                               ? problem.rows / CauchyBatchConfig::kRows * ceil_div(problem.points, CauchyBatchConfig::kPoints)
                               : cauchy_blocks(problem, config);
        const std::string why = explain_cauchy(problem, device);
        ASSERT_NE(why.find(fmt::format("{} blocks for {}", blocks, device.multiprocessors)), std::string::npos) << why;
    }
}

TEST(CauchyHeuristic, RowsOverTheSamePolesShareReciprocalsAndFewAreSpread) {
    const CauchyProblem s4{.rows = 1024, .shared_rows = 1, .points = 16384, .io = DType::c64, .conj = true, .poles = 64};
    EXPECT_TRUE(cauchy_config(s4, {}).one_tile);
    EXPECT_EQ(cauchy_config(s4, {}).rows, 1);
    EXPECT_EQ(cauchy_config(s4, {}).points, 4);
    const CauchyProblem batch{.rows = 20, .shared_rows = 20, .points = 4096, .io = DType::f32, .conj = false, .poles = 64};
    EXPECT_EQ(cauchy_config(batch, {}).rows, kCauchyRows);
    EXPECT_EQ(cauchy_config(batch, {}).points, 1) << "few blocks";
    EXPECT_NE(explain_cauchy(batch, {}).find("4 rows of 20 over the same poles"), std::string::npos);
    const CauchyProblem sixteen{.rows = 32, .shared_rows = 16, .points = 4096, .io = DType::bf16, .conj = false, .poles = 64};
    EXPECT_TRUE(cauchy_in_batches(sixteen));
    for (const CauchyBatchConfig& config : kCauchyBatchConfigurations)
        EXPECT_LE(CauchyBatch::shared_bytes(config), kSharedBytesEverywhere);
    EXPECT_NE(explain_cauchy(sixteen, {}).find("16 rows of 16 over the same poles at a time"), std::string::npos);
    EXPECT_FALSE(cauchy_in_batches(batch));
    EXPECT_FALSE(cauchy_in_batches(s4));
}

TEST(CauchyHeuristic, CandidatesAreRightForTheirProblemAndTheHeuristicsOwnIsFirst) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const CauchyProblem problem = random_cauchy(random);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const std::vector<CauchyChoice> all = cauchy_candidates(problem, device);
        ASSERT_EQ(all.front(), cauchy_choice(problem, device));
        for (const CauchyChoice& choice : all) {
            ASSERT_EQ(std::ranges::count(all, choice), 1);
            ASSERT_TRUE(!choice.in_batches || cauchy_in_batches(problem));
            if (choice.in_batches) continue;
            const CauchyConfig config = cauchy_config(problem, choice.rows, choice.points);
            ASSERT_TRUE(in(kCauchyConfigurations, config)) << to_text(config);
            ASSERT_EQ(problem.shared_rows % choice.rows, 0) << "a block's rows have the same poles";
            ASSERT_TRUE(choice.turns >= 1 && choice.turns <= kMostCauchyTurns);
        }
        const CauchyChoice last = all.back();
        CauchyWinners winners;
        winners.all = {{problem, last, 3, 4}};
        ASSERT_EQ(cauchy_choice(problem, device, &winners), last);
        ASSERT_EQ(explain_cauchy(problem, device, &winners),
                  "tuned on this device: " + to_text(last) + " took 3.00 us, the heuristic's own choice 4.00 us");
        CauchyProblem other = problem;
        ++other.poles;
        ASSERT_EQ(cauchy_choice(other, device, &winners), cauchy_choice(other, device));
    }
}

TEST(CauchyBackwardHeuristic, ChoosesWhatIsRegisteredAndCoversEveryOutput) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const CauchyProblem like = random_cauchy(random);
        const CauchyBackwardProblem problem{.rows = like.rows,
                                            .outputs = random.size(1 << 16),
                                            .io = like.io,
                                            .conj = like.conj,
                                            .wrt_points = random.one_of({true, false})};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const CauchyBackwardConfig config = cauchy_backward_config(problem, device);
        ASSERT_TRUE(in(kCauchyBackwardConfigurations, config)) << to_text(config);
        ASSERT_EQ(config.wrt_points, problem.wrt_points);
        ASSERT_GE(cauchy_backward_blocks(problem, config.outputs) * config.outputs, problem.rows * problem.outputs);
        const std::string why = explain_cauchy_backward(problem, device);
        ASSERT_EQ(why.find("point") != std::string::npos, problem.wrt_points) << why;
    }
    const CauchyBackwardProblem few{.rows = 1, .outputs = 64, .io = DType::c64, .conj = true, .wrt_points = false};
    EXPECT_EQ(cauchy_backward_config(few, {}).outputs, 1);
    CauchyBackwardProblem many = few;
    many.rows = 1024;
    EXPECT_EQ(cauchy_backward_config(many, {}).outputs, kCauchyBackwardOutputs);
}

}  // namespace
}  // namespace gdn_cuda::structured
