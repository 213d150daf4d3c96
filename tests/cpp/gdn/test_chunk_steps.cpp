// The heuristics of the chunked form's steps.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "families/gdn/compute_o.hpp"
#include "families/gdn/compute_u_w.hpp"
#include "families/gdn/seq_state_update.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(ChunkStepHeuristics, ChooseOnlyWhatIsRegisteredAndHoldsTheKeys) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RandomShape drawn = random_shape(random);
        const ChunkStepProblem problem{drawn.sequences, drawn.heads, drawn.dk, drawn.dv, drawn.state, drawn.aligned};
        const auto u_w = compute_u_w_config(problem.dk, problem.aligned);
        const auto output = compute_o_config(problem.dk, problem.state, problem.aligned);
        const auto update = seq_state_update_config(problem, device_of(random.one_of({46, 108, 132, 160})));
        ASSERT_TRUE(in(kComputeUWConfigurations, u_w)) << to_text(u_w);
        ASSERT_TRUE(in(kComputeOConfigurations, output)) << to_text(output);
        ASSERT_TRUE(in(kSeqStateUpdateConfigurations, update)) << to_text(update);
        for (const auto& [head_k, aligned] : {std::pair{u_w.head_k, u_w.aligned}, std::pair{output.head_k, output.aligned},
                                              std::pair{update.head_k, update.aligned}}) {
            EXPECT_GE(head_k, problem.dk);
            EXPECT_EQ(aligned, problem.aligned);
        }
    }
}

TEST(ChunkStepHeuristics, FewSequencesAreSpreadOverMoreBlocks) {
    const jit::DeviceTraits device = device_of(132);
    const ChunkStepProblem one{1, 32, 128, 128, DType::f32, true}, eight{8, 32, 128, 128, DType::f32, true};
    EXPECT_LT(seq_state_update_config(one, device).rows_per_block(), seq_state_update_config(eight, device).rows_per_block());
    EXPECT_NE(explain_seq_state_update(one, device).find("128 blocks"), std::string::npos);
}

}  // namespace
}  // namespace gdn_cuda::gdn
