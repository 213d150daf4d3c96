// Products with Toeplitz matrices: choice of kernel and configuration, and arguments.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "families/structured/toeplitz_matvec.hpp"
#include "families/structured/toeplitz_sums.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr auto kTypes = {DType::f32, DType::f64, DType::c64, DType::c128};

TEST(ToeplitzMatvecHeuristic, EverySizeIsHeldByARegisteredBlock) {
    for (const DType io : kTypes)
        for (int n = 1; n <= toeplitz_matvec_longest(io); ++n) {
            const ToeplitzMatvecConfig config = toeplitz_matvec_config({.systems = 3, .columns = 1, .n = n, .io = io});
            ASSERT_TRUE(in(kToeplitzMatvecConfigurations, config)) << to_text(config);
            ASSERT_EQ(config.io, io);
            ASSERT_LE(n, config.longest()) << to_text(config);
            const int transform = toeplitz_transform_of(io, n);
            ASSERT_LE(transform, config.transform);
            ASSERT_GE(transform, is_complex(io) ? 2 * n : n) << "or the ends of the convolution overlap";
            ASSERT_LE(transform / kFftEach, config.threads * config.groups());
            for (const i64 columns : {1, 3000}) {
                const ToeplitzSumsConfig sums = toeplitz_sums_config({.systems = 3, .columns = columns, .n = n, .io = io}, {});
                ASSERT_TRUE(in(kToeplitzSumsConfigurations, sums)) << to_text(sums);
                ASSERT_EQ(sums.io, io);
            }
        }
    EXPECT_EQ(toeplitz_matvec_longest(DType::f32), 8192) << "the limit that gdn_cuda/structured/toeplitz_operators.py assumes";
    EXPECT_EQ(toeplitz_matvec_longest(DType::f64), 4096);
    EXPECT_EQ(toeplitz_matvec_longest(DType::c64), 2048);
    EXPECT_EQ(toeplitz_matvec_longest(DType::c128), 1024);
}

// The fastest choices on an H200.
TEST(ToeplitzMatvecHeuristic, ChoosesWhatWasMeasuredToBeFaster) {
    struct Measured {
        DType io;
        i64 systems;
        int n, strip;  // 0: transforms
    };
    for (const auto& [io, systems, n, strip] :
         {Measured{DType::f32, 4, 256, 4}, {DType::f32, 64, 256, 4},  {DType::f32, 128, 256, 8}, {DType::f32, 64, 512, 8},
          {DType::f32, 256, 512, 0},       {DType::f32, 16, 1024, 4}, {DType::f32, 64, 1024, 0}, {DType::f32, 16, 2048, 8},
          {DType::f32, 32, 2048, 0},       {DType::f32, 4, 4096, 4},  {DType::f32, 16, 4096, 0}, {DType::f32, 1, 8192, 4},
          {DType::f32, 4, 8192, 8},        {DType::f32, 16, 8192, 0}, {DType::f64, 16, 1024, 4}, {DType::f64, 64, 512, 8},
          {DType::f64, 64, 1024, 0},       {DType::f64, 4, 2048, 4},  {DType::c64, 4, 1024, 4},  {DType::c64, 64, 1024, 0},
          {DType::c64, 4, 2048, 4},        {DType::c128, 64, 256, 4}, {DType::c128, 1, 512, 0},  {DType::c128, 1, 1024, 0}}) {
        const ToeplitzMatvecProblem problem{.systems = systems, .columns = 1, .n = n, .io = io};
        const bool sums = toeplitz_by_sums(problem, {});
        EXPECT_EQ(sums ? toeplitz_sums_config(problem, {}).strip : 0, strip) << systems << " systems of " << n;
    }
}

TEST(ToeplitzMatvecHeuristic, SaysWhatItChooses) {
    const ToeplitzMatvecProblem few{.systems = 4, .columns = 1, .n = 300, .io = DType::f32};
    EXPECT_EQ(explain_toeplitz_matvec(few, {}), "sums: 3 tiles of 128 rows, 1 right-hand sides a block");
    ToeplitzMatvecProblem many = few;
    many.columns = 1000;
    EXPECT_EQ(explain_toeplitz_matvec(many, {}),
              "transforms of 512 complex values for 300 rows; a block transforms the matrix, then 31 right-hand sides");
    many.n = kToeplitzAlwaysSums;
    EXPECT_TRUE(toeplitz_by_sums(many, {})) << "short sums of small integers are exact";
}

TEST(ToeplitzMatvecHeuristic, EveryColumnHasABlockAndNoBlockIsEmpty) {
    for (const i64 systems : {1, 5, 132, 1000})
        for (const i64 columns : {1, 2, 131, 5000}) {
            const ToeplitzMatvecProblem problem{systems, columns, 500, DType::f32};
            for (const i64 each : {toeplitz_matvec_columns_per_block(problem, {}),
                                   toeplitz_sums_columns_per_block(problem, toeplitz_sums_config(problem, {}), {})}) {
                EXPECT_GE(each, 1);
                EXPECT_LT((ceil_div(columns, each) - 1) * each, columns);
                EXPECT_LT(ceil_div(columns, each), 1 << 16) << "a dimension of a grid";
            }
        }
}

TEST(ToeplitzMatvecArguments, TheTransposeHasRowAndColumnExchangedButForTheDiagonal) {
    const float column = 1, row = 2, x = 3;
    ToeplitzMatvecOperands operands{.column = {.data = &column, .stride = {10, 11, 12}, .step = 13},
                                    .row = {.data = &row, .stride = {20, 21, 22}, .step = 23},
                                    .x = {.data = &x, .stride = {30, 31, 32}, .step = 33},
                                    .size = {4, 5, 6},
                                    .leading = 3};
    const ToeplitzMatvecArgs straight = toeplitz_matvec_args(operands, false), across = toeplitz_matvec_args(operands, true);
    EXPECT_EQ(straight.below.data, &column);
    EXPECT_EQ(straight.above.data, &row);
    EXPECT_EQ(straight.first_below, 0) << "c[0] wins: the diagonal is below's";
    EXPECT_EQ(across.below.data, &row);
    EXPECT_EQ(across.above.data, &column);
    EXPECT_EQ(across.first_below, 1) << "c[0] wins: the diagonal is above's";
    EXPECT_EQ(across.below.step, 23);
    EXPECT_EQ(across.above.stride, 10) << "of the outermost dimension";
    ASSERT_EQ(across.inner_count, 2);
    EXPECT_EQ(across.inner[0].size, 5);
    EXPECT_EQ(across.inner[1].below, 22);
    EXPECT_EQ(across.inner[1].above, 12);
    EXPECT_EQ(across.inner[1].x, 32);
    operands.leading = 0;
    EXPECT_EQ(toeplitz_matvec_args(operands, false).inner_count, 0);
}

TEST(ToeplitzMatvecKernels, SharedMemoryIsThereOnEveryGpu) {
    for (const auto& config : kToeplitzMatvecConfigurations)
        EXPECT_LE(ToeplitzMatvec::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
    for (const auto& config : kToeplitzSumsConfigurations)
        EXPECT_LE(ToeplitzSums::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
}

}  // namespace
}  // namespace gdn_cuda::structured
