// Choices for layers/mamba2_decode_layer: blocks cover a group's rows, and fill the GPU in clusters that it supports.
#include <gtest/gtest.h>

#include "families/layers/mamba2_decode_layer.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::layers {
namespace {

TEST(Mamba2LayerHeuristic, BlocksCoverAGroup) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const Mamba2LayerProblem problem{.sequences = random.size(4096),
                                         .groups = static_cast<int>(random.size(16)),
                                         .group_rows = static_cast<int>(random.size(8192)),
                                         .columns = random.one_of({64, 128, 256}),
                                         .state = random.one_of({DType::f32, DType::bf16, DType::f16})};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const Mamba2LayerChoice choice = mamba2_layer_choice(problem, device);
        ASSERT_GE(static_cast<i64>(choice.parts) * choice.part_rows, problem.group_rows);
        ASSERT_LT(static_cast<i64>(choice.parts - 1) * choice.part_rows, problem.group_rows) << "the last but one is needed";
        ASSERT_EQ(choice.part_rows % problem.config().rows_per_step(), 0);
        ASSERT_TRUE(1 <= choice.parts && choice.parts <= kMostMamba2Parts);
        ASSERT_NE(std::ranges::find(scan::kTiedSteps, problem.config()), scan::kTiedSteps.end());
        ASSERT_NE(explain_mamba2_layer(problem, device), "");
    }
}

TEST(Mamba2LayerHeuristic, FewGroupsAreDividedWhereThereAreClusters) {
    const auto parts = [](i64 sequences, int capability) {
        jit::DeviceTraits device = device_of(132);
        device.capability = capability;
        return mamba2_layer_choice({sequences, 8, 1024, 128, DType::f32}, device).parts;
    };
    EXPECT_EQ(parts(1, 90), 8);
    EXPECT_EQ(parts(16, 90), 8);
    EXPECT_EQ(parts(64, 90), 2);
    EXPECT_EQ(parts(256, 90), 1);
    EXPECT_EQ(parts(1, 80), 1);
    EXPECT_EQ(parts(1, 86), 1);
}

}  // namespace
}  // namespace gdn_cuda::layers
