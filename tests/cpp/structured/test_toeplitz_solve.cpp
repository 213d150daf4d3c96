// Toeplitz systems: choice of method, and configurations of its kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "families/structured/toeplitz_methods.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::structured {
namespace {

TEST(ToeplitzSolverHeuristics, EverySizeIsHeldByARegisteredBlock) {
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128})
        for (int n = 1; n <= kToeplitzGkoLongest; ++n)
            for (const i64 columns : {0, 1, 2, 9}) {
                const ToeplitzGkoProblem problem{.systems = 2, .columns = columns, .n = n, .io = io};
                const ToeplitzGkoConfig config = toeplitz_gko_config(problem);
                ASSERT_TRUE(in(kToeplitzGkoConfigurations, config)) << to_text(config);
                ASSERT_EQ(config.io, io);
                ASSERT_GE(config.rows(), n);
                ASSERT_NE(explain_toeplitz_gko(problem).find(fmt::format("{} rows on {} threads", n, config.threads)),
                          std::string::npos);
            }
    for (const DType io : {DType::f32, DType::f64})
        for (int n = 1; n <= kToeplitzSchurLongest; ++n)
            for (const i64 columns : {1, 2, 9}) {
                const ToeplitzSchurProblem problem{.systems = 2, .columns = columns, .n = n, .io = io};
                const ToeplitzSchurConfig config = toeplitz_schur_config(problem);
                ASSERT_TRUE(in(kToeplitzSchurConfigurations, config)) << to_text(config);
                ASSERT_EQ(config.io, io);
                ASSERT_GE(config.rows(), n);
                ASSERT_NE(explain_toeplitz_schur(problem).find(fmt::format("{} rows on {} threads", n, config.threads)),
                          std::string::npos);
            }
    for (int n = 1; n <= kToeplitzEliminateLongest; ++n)
        for (const i64 columns : {1, 2, 6}) {
            const ToeplitzEliminateProblem problem{.systems = 3, .columns = columns, .n = n};
            const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, {});
            ASSERT_TRUE(in(kToeplitzEliminateConfigurations, config)) << to_text(config);
            ASSERT_GE(config.rows(), n);
        }
    EXPECT_EQ(kToeplitzEliminateShortest, 513);
    EXPECT_EQ(kToeplitzEliminateLongest, 8192);
    EXPECT_EQ(kToeplitzGkoLongest, 1024);
    EXPECT_EQ(kToeplitzSchurLongest, 4096);
}

TEST(ToeplitzEliminateHeuristic, LargeClustersForFewSystemsAndSmallOnesForMany) {
    const auto device = jit::DeviceTraits::for_arch("sm_90a");
    const auto config = [&](i64 systems, i64 columns, int n) {
        return toeplitz_eliminate_config({systems, columns, n}, device);
    };
    EXPECT_EQ(config(1, 2, 8192), (ToeplitzEliminateConfig{16, 128, 4, 2}));
    EXPECT_EQ(config(1, 6, 8192).columns, 2) << "three clusters at once, with faster steps";
    EXPECT_EQ(config(20, 6, 8192).columns, 4) << "two waves for every three";
    EXPECT_EQ(config(1, 2, 2048), (ToeplitzEliminateConfig{8, 128, 2, 2}))
        << "stores to the other half take longer than a second row";
    EXPECT_EQ(config(64, 2, 1100).blocks, 4);
    EXPECT_EQ(toeplitz_eliminate_config({1, 2, kToeplitzEliminateLongestPortable}, device, kToeplitzEliminatePortable),
              (ToeplitzEliminateConfig{8, 128, 4, 2}));
    EXPECT_TRUE(toeplitz_eliminate_pays({64, 2, 1024}, device));
    EXPECT_FALSE(toeplitz_eliminate_pays({100, 2, 1024}, device)) << "clusters would queue, and one block suffices";
    EXPECT_TRUE(toeplitz_eliminate_pays({100, 2, 1025}, device));
    EXPECT_FALSE(toeplitz_eliminate_pays({1, 2, 256}, device));
    EXPECT_EQ(explain_toeplitz_eliminate({4, 2, 4096}, toeplitz_eliminate_config({4, 2, 4096}, device), device),
              "4096 rows on 16 blocks of 128 threads, 2 each; 4 clusters of 2 right-hand sides, 7 at once");
}

TEST(ToeplitzPcgHeuristic, BlocksAreNoMoreThanRunAtOnceAndNotIdle) {
    for (const DType io : {DType::f32, DType::f64})
        for (const i64 systems : {1, 5, 1000})
            for (const i64 columns : {0, 1, 200}) {
                const ToeplitzPcgProblem problem{.systems = systems, .columns = columns, .n = kToeplitzPcgLongest, .io = io};
                const ToeplitzPcgConfig config = toeplitz_pcg_config(problem);
                EXPECT_EQ(config.io, io);
                EXPECT_EQ(config.groups() * config.threads * kFftEach, config.transform) << "or some values have no thread";
                const i64 blocks = toeplitz_pcg_blocks(problem, device_of(132));
                EXPECT_EQ(blocks, std::min<i64>(systems * (columns + 1), 132));
                EXPECT_NE(explain_toeplitz_pcg(problem, device_of(132)).find(fmt::format("in {} blocks", blocks)),
                          std::string::npos);
            }
    EXPECT_EQ(kToeplitzPcgLongest, 8192);
}

TEST(ToeplitzSolverKernels, SharedMemoryIsThereOnEveryGpu) {
    for (const auto& config : kToeplitzEliminateConfigurations) {
        EXPECT_LE(ToeplitzEliminate::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        EXPECT_EQ(config.threads % 32, 0) << to_text(config);
    }
    for (const auto& config : kToeplitzSchurConfigurations)
        EXPECT_LE(ToeplitzSchur::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
    for (const auto& config : kToeplitzPcgConfigurations)
        EXPECT_LE(ToeplitzPcg::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
}

TEST(ToeplitzPlan, TriesTheFastestPositiveDefiniteMethodFirst) {
    using enum ToeplitzPositiveMethod;
    const auto methods = [](i64 n) { return toeplitz_positive_methods(n); };
    EXPECT_EQ(methods(1024), std::vector{schur});
    EXPECT_EQ(methods(1025), (std::vector{pcg, schur}));
    EXPECT_EQ(methods(4096), (std::vector{pcg, schur}));
    EXPECT_EQ(methods(4097), std::vector{pcg});
    EXPECT_EQ(methods(8192), std::vector{pcg});
    EXPECT_EQ(methods(8193), std::vector{pcg_in_torch});
    EXPECT_EQ(toeplitz_positive_methods(9, {.gko = 0, .schur = 8, .pcg_from = 0, .pcg_to = 8}), std::vector{pcg_in_torch});
}

TEST(ToeplitzPlan, ADenseLUHasAReason) {
    EXPECT_NE(explain_dense_lu(8193).find("8193 rows are more than the 8192 of a cluster of blocks"), std::string::npos);
    EXPECT_NE(explain_dense_lu(1025).find("more than the 1024 of one block, and the GPU has no clusters"), std::string::npos);
}

}  // namespace
}  // namespace gdn_cuda::structured
