// The heuristic of gdn/recurrent: few configurations for many problems, all of them registered.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "families/gdn/recurrent.hpp"
#include "gdn_problems.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

RecurrentProblem random_problem(Random& random) {
    const RandomShape drawn = random_shape(random);
    return {.sequences = drawn.sequences,
            .tokens = drawn.tokens,
            .heads = drawn.heads,
            .dk = drawn.dk,
            .dv = drawn.dv,
            .io = drawn.io,
            .state = drawn.state,
            .aligned = drawn.aligned};
}

TEST(RecurrentHeuristic, AModelsShapesNeedAHandfulOfKernels) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < kProblems; ++i) {
        RecurrentProblem problem = random_problem(random);
        problem.dk = problem.dv = 128;
        problem.io = DType::bf16;
        problem.state = DType::f32;
        chosen.insert(to_text(recurrent_config(problem, {})));
    }
    EXPECT_GE(chosen.size(), 2U);
    EXPECT_LE(chosen.size(), 4U);
}

TEST(RecurrentHeuristic, ChoosesOnlyWhatIsRegistered) {
    Random random;
    const auto all = recurrent_configurations();
    for (int i = 0; i < kProblems; ++i) {
        const RecurrentProblem problem = random_problem(random);
        const RecurrentConfig config = recurrent_config(problem, device_of(random.one_of({46, 108, 132, 160})));
        ASSERT_NE(std::ranges::find(all, config), all.end()) << to_text(config);
    }
}

TEST(RecurrentHeuristic, TheKernelCanDoTheProblem) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RecurrentProblem problem = random_problem(random);
        const RecurrentConfig config = recurrent_config(problem, {});
        ASSERT_GE(config.head_k, problem.dk);
        ASSERT_TRUE(!config.exact_k || config.head_k == problem.dk);
        ASSERT_TRUE(!config.aligned || problem.aligned) << "wide accesses to rows that do not start on 16 bytes";
        ASSERT_EQ(config.io, problem.io);
        ASSERT_EQ(config.state, problem.state);
    }
}

TEST(RecurrentHeuristic, IsDeterministicAndSaysWhy) {
    Random random;
    for (int i = 0; i < 100; ++i) {
        const RecurrentProblem problem = random_problem(random);
        ASSERT_EQ(recurrent_config(problem, {}), recurrent_config(problem, {}));
        const std::string why = explain_recurrent(problem, {});
        ASSERT_EQ(why.find("do not start on 16 bytes") != std::string::npos, !problem.aligned) << why;
        ASSERT_EQ(why.find("masked") != std::string::npos, !recurrent_config(problem, {}).exact_k) << why;
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
