// Heuristics of the Toeplitz kernels, with no GPU: what they choose is registered, holds the problem and spreads it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "heuristics_tools.hpp"
#include "jit_kernels/heuristics/structured_toeplitz.hpp"
#include "jit_kernels/impls/structured/toeplitz_eliminate.hpp"
#include "jit_kernels/impls/structured/toeplitz_gko.hpp"
#include "jit_kernels/impls/structured/toeplitz_matvec.hpp"
#include "jit_kernels/impls/structured/toeplitz_schur.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr auto kTypes = {DType::f32, DType::f64, DType::c64, DType::c128};

TEST(ToeplitzMatvecHeuristic, EverySizeIsHeldByARegisteredBlock) {
    for (const DType io : kTypes)
        for (int n = 1; n <= toeplitz_matvec_longest(io); ++n)
            for (const i64 columns : {1, 3000}) {
                const ToeplitzMatvecProblem problem{.systems = 3, .columns = columns, .n = n, .io = io};
                const ToeplitzMatvecConfig config = toeplitz_matvec_config(problem, {});
                ASSERT_TRUE(in(kToeplitzMatvecConfigurations, config)) << to_text(config);
                ASSERT_EQ(config.io, io);
                ASSERT_LE(n, config.longest()) << to_text(config);
                if (config.direct()) continue;
                const int transform = toeplitz_transform_of(io, n);
                ASSERT_LE(transform, config.transform);
                ASSERT_GE(transform, is_complex(io) ? 2 * n : n) << "or the ends of the convolution meet";
                ASSERT_LE(transform / kFftEach, config.threads * config.groups());
            }
    EXPECT_EQ(toeplitz_matvec_longest(DType::f32), 8192);
    EXPECT_EQ(toeplitz_matvec_longest(DType::f64), 4096);
    EXPECT_EQ(toeplitz_matvec_longest(DType::c64), 2048);
    EXPECT_EQ(toeplitz_matvec_longest(DType::c128), 1024);
}

TEST(ToeplitzMatvecHeuristic, SumsForFewAndTransformsForMany) {
    const ToeplitzMatvecProblem few{.systems = 4, .columns = 1, .n = 256, .io = DType::f32};
    EXPECT_TRUE(toeplitz_matvec_config(few, {}).direct());
    EXPECT_EQ(explain_toeplitz_matvec(few, {}), "sums: 256 rows make 8 tiles of 32, and 1 right-hand sides a block");
    ToeplitzMatvecProblem many = few;
    many.columns = 1000;
    EXPECT_EQ(toeplitz_matvec_config(many, {}).transform, 256);
    EXPECT_EQ(explain_toeplitz_matvec(many, {}),
              "transforms of 256 complex numbers for 256 rows, 31 right-hand sides a block behind one of the matrix");
    many.n = 64;
    EXPECT_TRUE(toeplitz_matvec_config(many, {}).direct());
}

TEST(ToeplitzMatvecHeuristic, EveryColumnHasABlockAndNoBlockIsEmpty) {
    for (const i64 systems : {1, 5, 132, 1000})
        for (const i64 columns : {1, 2, 131, 5000}) {
            const i64 each = toeplitz_columns_per_block({systems, columns, 500, DType::f32}, {});
            EXPECT_GE(each, 1);
            EXPECT_LT((ceil_div(columns, each) - 1) * each, columns);
        }
}

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
    EXPECT_EQ(kToeplitzEliminateShortest, 513) << "gdn_cuda/ops/structured_toeplitz_solve.py says so too";
    EXPECT_EQ(kToeplitzEliminateLongest, 8192) << "gdn_cuda/ops/structured_toeplitz_solve.py says so too";
    EXPECT_EQ(kToeplitzGkoLongest, 1024) << "gdn_cuda/ops/structured_toeplitz_solve.py says so too";
    EXPECT_EQ(kToeplitzSchurLongest, 4096) << "gdn_cuda/ops/structured_toeplitz_solve.py says so too";
}

TEST(ToeplitzEliminateHeuristic, LargeClustersForFewSystemsAndSmallOnesForMany) {
    const auto device = jit::DeviceTraits::for_arch("sm_90a");
    const auto config = [&](i64 systems, i64 columns, int n) {
        return toeplitz_eliminate_config({systems, columns, n}, device);
    };
    EXPECT_EQ(config(1, 2, 8192), (ToeplitzEliminateConfig{16, 128, 4, 2}));
    EXPECT_EQ(config(1, 6, 8192).columns, 2) << "three clusters at once, and quicker ones";
    EXPECT_EQ(config(20, 6, 8192).columns, 4) << "two waves for every three";
    EXPECT_EQ(config(1, 2, 2048), (ToeplitzEliminateConfig{8, 128, 2, 2}))
        << "stores to the other half take longer than a second row";
    EXPECT_EQ(config(64, 2, 1100).blocks, 4);
    EXPECT_TRUE(toeplitz_eliminate_pays({64, 2, 1024}, device));
    EXPECT_FALSE(toeplitz_eliminate_pays({100, 2, 1024}, device)) << "they would queue, and one block can";
    EXPECT_TRUE(toeplitz_eliminate_pays({100, 2, 1025}, device));
    EXPECT_FALSE(toeplitz_eliminate_pays({1, 2, 256}, device));
    EXPECT_EQ(explain_toeplitz_eliminate({4, 2, 4096}, device),
              "4096 rows on 16 blocks of 128 threads, 2 each; 4 clusters of 2 right-hand sides, 7 at once");
}

TEST(ToeplitzKernels, SharedMemoryIsThereOnEveryGpu) {
    for (const auto& config : kToeplitzMatvecConfigurations)
        EXPECT_LE(ToeplitzMatvec::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
    for (const auto& config : kToeplitzEliminateConfigurations) {
        EXPECT_LE(ToeplitzEliminate::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        EXPECT_EQ(config.threads % 32, 0) << to_text(config);
    }
    for (const auto& config : kToeplitzSchurConfigurations)
        EXPECT_LE(ToeplitzSchur::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
}

}  // namespace
}  // namespace gdn_cuda::structured
