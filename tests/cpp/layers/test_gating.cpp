// Configurations of layers/gating.
#include <gtest/gtest.h>

#include "families/layers/gating.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::layers {
namespace {

TEST(GatingHeuristic, WideAccessesOnlyToAlignedRows) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const GatingProblem problem{.rows = random.size(1 << 20),
                                    .heads = static_cast<int>(random.size(256)),
                                    .io = random.one_of({DType::bf16, DType::f16, DType::f32}),
                                    .aligned = random.one_of({true, false})};
        const GatingConfig config = gating_config(problem);
        ASSERT_TRUE(config.vector == 1 || (problem.aligned && problem.heads % config.vector == 0));
        ASSERT_GE(gating_blocks(problem, config, {}), 1U);
    }
}

}  // namespace
}  // namespace gdn_cuda::layers
