// The heuristic of gdn/prefill_mma: its configurations are registered and fit every GPU.
#include <gtest/gtest.h>

#include "families/gdn/prefill_mma.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(PrefillMmaHeuristic, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RandomShape like = random_shape(random);
        const ChunkedProblem problem{
            .sequences = like.sequences, .heads = like.heads, .dk = like.dk, .dv = like.dv, .io = like.io, .state = like.state};
        const PrefillMmaConfig config = prefill_mma_config(problem);
        ASSERT_NE(std::ranges::find(kPrefillMmaConfigurations, config), kPrefillMmaConfigurations.end()) << to_text(config);
        ASSERT_GE(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_LE(PrefillMma::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        ASSERT_TRUE(config.warps == 4 || problem.dv > config.rows_per_block() / 2) << "half of the block would have no rows";
        ASSERT_NE(explain_prefill_mma(problem, {}), "");
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
