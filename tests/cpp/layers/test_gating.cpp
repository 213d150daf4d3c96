// Configurations of layers/gating.
#include <gtest/gtest.h>

#include "families/layers/gating.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::layers {
namespace {

TEST(GatingHeuristic, WideAccessesOnlyToAlignedRows) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const int heads = static_cast<int>(random.size(256)), channels = static_cast<int>(random.size(256));
        GatingProblem problem{.rows = random.size(1 << 20),
                              .columns = heads,
                              .io = random.one_of({DType::bf16, DType::f16, DType::f32}),
                              .aligned = random.one_of({true, false}),
                              .channels = random.one_of({true, false})};
        if (problem.channels) {
            problem.columns *= channels;
            problem.channels_per_head = channels;
            problem.bounded = random.one_of({true, false});
        }
        const GatingConfig config = gating_config(problem);
        const int contiguous = problem.channels ? channels : heads;  // a vector is within a head
        ASSERT_TRUE(config.vector == 1 || (problem.aligned && contiguous % config.vector == 0));
        ASSERT_TRUE(std::ranges::find(Gating::configurations(), config) != Gating::configurations().end());
        ASSERT_GE(gating_blocks(problem, config, {}), 1U);
    }
}

}  // namespace
}  // namespace gdn_cuda::layers
