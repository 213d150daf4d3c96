// Configurations of layers/rms_norm and layers/rms_norm_backward.
#include <gtest/gtest.h>

#include "families/layers/rms_norm.hpp"
#include "families/layers/rms_norm_backward.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::layers {
namespace {

template <class Spec>
void check(const RmsNormProblem& problem, const RmsNormConfig& config) {
    ASSERT_TRUE(in(Spec::configurations(), config));
    ASSERT_TRUE(config.is_long || problem.columns <= config.columns());
    ASSERT_EQ(config.vectors, problem.vectors);
    const Blocks blocks = Spec::blocks(problem, config, device_of(132));
    ASSERT_GE(blocks[0], 1);
    ASSERT_LE((blocks[0] - 1) * config.rows(), problem.rows - 1);  // every block has a row
    ASSERT_EQ(blocks[1], problem.groups);
}

TEST(RmsNormHeuristic, EveryRowHasThreadsAndEveryBlockARow) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RmsNormProblem problem{.io = random.one_of({DType::bf16, DType::f16, DType::f32}),
                                     .vectors = random.one_of({true, false}),
                                     .rows = 1 + random.size(1 << 20),
                                     .columns = 1 + random.size(20000),
                                     .groups = 1 + random.size(100)};
        check<RmsNorm>(problem, rms_norm_forward_config(problem));
        check<RmsNormBackward>(problem, rms_norm_backward_config(problem));
    }
}

}  // namespace
}  // namespace gdn_cuda::layers
