// Candidates for tuning scan/selective_forward.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "families/scan/selective_forward.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::scan {
namespace {

TEST(SelectiveForwardHeuristic, CandidatesComputeTheSameProblemAndAWinnerDecides) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const Transition transition = random.one_of({Transition::exponential, Transition::zoh, Transition::bilinear});
        const SelectiveForwardProblem problem{.transition = transition,
                                              .is_complex = random.one_of({true, false}),
                                              .is_narrow = random.one_of({true, false}),
                                              .states = static_cast<int>(random.size(256)),
                                              .channels = random.size(1 << 20)};
        const std::vector<SelectiveForwardConfig> all = selective_forward_candidates(problem, {});
        const SelectiveForwardConfig own = selective_forward_config(problem, 1, jit::DeviceTraits{}.multiprocessors);
        ASSERT_EQ(all.front(), own);
        ASSERT_EQ(all.size(), transition == Transition::exponential && !problem.is_complex ? 2u : 1u);
        for (const SelectiveForwardConfig& config : all) {
            ASSERT_TRUE(in(kSelectiveForwardConfigurations, config)) << to_text(config);
            ASSERT_EQ(config.is_narrow, own.is_narrow) << "shared memory is laid out for one pass, or for several";
            ASSERT_TRUE(config.transition == problem.transition && config.is_complex == problem.is_complex);
        }
        ASSERT_EQ(from_text<SelectiveForwardProblem>(to_text(problem)), problem);
        SelectiveForwardWinners winners;
        winners.all = {{problem, all.back(), 3, 4}};
        for (const int segments : {1, 82}) ASSERT_EQ(selective_forward_config(problem, segments, 132, &winners), all.back());
        ASSERT_NE(explain_selective_forward(problem, 1, {}, &winners).find("tuned on this device: {.transition = "),
                  std::string::npos);
    }
}

}  // namespace
}  // namespace gdn_cuda::scan
