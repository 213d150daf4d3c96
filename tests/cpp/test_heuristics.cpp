// Heuristics and plans, with no GPU: few configurations for many problems, all of them registered, each within a block's means.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "heuristics_tools.hpp"
#include "jit_kernels/heuristics/gdn.hpp"
#include "jit_kernels/impls/gdn/prefill_mma.hpp"
#include "jit_kernels/impls/gdn/recurrent.hpp"
#include "jit_kernels/registry.hpp"

namespace gdn_cuda::gdn {
namespace {

RecurrentProblem random_problem(Random& random) {
    const int key_heads = random.one_of({1, 2, 4, 8, 16, 30});
    return {.sequences = random.size(4096),
            .tokens = random.size(131072),
            .heads = key_heads * random.one_of({1, 2, 3, 4, 8}),
            .dk = 8 * static_cast<int>(std::min<i64>(random.size(32), 32)),
            .dv = 8 * static_cast<int>(std::min<i64>(random.size(32), 32)),
            .io = random.one_of({DType::bf16, DType::f16}),
            .state = random.one_of({DType::f32, DType::bf16}),
            .aligned = random.one_of({true, false})};
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

DecodeProblem random_decode(Random& random) {
    const RecurrentProblem like = random_problem(random);
    return {.sequences = like.sequences,
            .heads = like.heads,
            .dk = random.one_of({64, 96, 128, 192, 256}),
            .dv = like.dv,
            .io = like.io,
            .state = like.state,
            .fused_gates = random.one_of({true, false})};
}

TEST(PrefillHeuristic, ChoosesWhatIsRegisteredAndFits) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RecurrentProblem like = random_problem(random);
        const PrefillProblem problem{.sequences = like.sequences,
                                     .tokens = like.tokens,
                                     .heads = like.heads,
                                     .dk = random.one_of({8, 40, 64, 96, 104, 128}),
                                     .dv = like.dv,
                                     .io = like.io,
                                     .state = like.state};
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const PrefillSplit split = prefill_split(problem, device);
        const PrefillConfig config = prefill_config(problem, split);
        ASSERT_NE(std::ranges::find(kPrefillConfigurations, config), kPrefillConfigurations.end()) << to_text(config);
        ASSERT_GE(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        if (problem.dv > kValueRows)
            for (const int segments : {1, 2, 3})
                if (segments == 1 || prefill_blocks(problem, 1) * segments <= device.multiprocessors)
                    if (segments == 1 || problem.tokens >= segments * kShortestSegment * kChunk)
                        for (const int groups : {1, 2})
                            ASSERT_LE(prefill_cost(problem, split, device).weighed(),
                                      prefill_cost(problem, {groups, segments}, device).weighed());
        ASSERT_NE(explain_prefill(problem, device), "");
        const int segments = split.segments;
        ASSERT_GE(segments, 1);
        ASSERT_LE(segments, kMostSegments);
        if (segments > 1) {
            ASSERT_LE(segments * prefill_blocks(problem, config.value_groups), device.multiprocessors);
            ASSERT_GE(problem.tokens, segments * kShortestSegment * kChunk);
        }
    }
}

TEST(PrefillHeuristic, SequencesAreSplitWhereHeadsLeaveRoom) {
    PrefillProblem problem{
        .sequences = 1, .tokens = 32768, .heads = 8, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    const auto split = [&] { return prefill_split(problem, {}); };
    EXPECT_EQ(split().segments, jit::DeviceTraits{}.multiprocessors / 8);
    EXPECT_EQ(split().value_groups, 2);
    EXPECT_TRUE(prefill_cost(problem, split(), {}).linked);
    problem.deterministic = true;
    EXPECT_EQ(split().segments, 1);
    EXPECT_EQ(split().value_groups, 1);
    problem.deterministic = false;
    problem.tokens = 4 * kShortestSegment * kChunk;
    EXPECT_GT(split().segments, 1);
    EXPECT_FALSE(prefill_cost(problem, split(), {}).linked) << "somebody has to set counts to zero";
    problem.tokens = kShortestSegment * kChunk;
    EXPECT_EQ(split().segments, 1);
    problem = {.sequences = 8, .tokens = 32768, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    EXPECT_EQ(split().segments, 1);
}

// What heads that remember cost is at most 3 % more than without a split, and a segment does not begin so early that it is
// more.
TEST(PrefillHeuristic, HeadsThatRememberLoseNothingBySplits) {
    for (const int heads : {4, 8, 16, 32, 48, 64})
        for (const i64 tokens : {1024, 2048, 4096, 8192, 32768, 131072}) {
            PrefillProblem problem{
                .sequences = 1, .tokens = tokens, .heads = heads, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
            const PrefillSplit split = prefill_split(problem, {});
            const PrefillCost cost = prefill_cost(problem, split, {});
            problem.deterministic = true;
            const PrefillSplit unsplit = prefill_split(problem, {});
            const double whole = prefill_cost(problem, unsplit, {}).remembering;
            EXPECT_LE(cost.remembering, 1.03 * whole) << heads << " heads, " << tokens << " tokens";
            if (split.segments == 1) continue;
            const int reach = prefill_reach(problem, split, {});
            ASSERT_GE(reach, 1);
            const i64 share = ceil_div(prefill_chunks(problem), split.segments);
            EXPECT_LE(prefill_walk_ns(problem, split, share + reach, {}), cost.remembering)
                << heads << " heads, " << tokens << " tokens, " << reach << " chunks";
        }
}

TEST(PrefillHeuristic, FewHeadsAreSpreadAndManyShareTheirHelpers) {
    const PrefillProblem one{
        .sequences = 1, .tokens = 4096, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::f32};
    EXPECT_EQ(prefill_split(one, {}).value_groups, 1);
    PrefillProblem eight = one;
    eight.sequences = 8;
    EXPECT_EQ(prefill_split(eight, {}).value_groups, 2);
}

TEST(PrefillMmaHeuristic, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const RecurrentProblem like = random_problem(random);
        const PrefillProblem problem{
            .sequences = like.sequences, .heads = like.heads, .dk = like.dk, .dv = like.dv, .io = like.io, .state = like.state};
        const PrefillMmaConfig config = prefill_mma_config(problem);
        ASSERT_NE(std::ranges::find(kPrefillMmaConfigurations, config), kPrefillMmaConfigurations.end()) << to_text(config);
        ASSERT_GE(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_LE(PrefillMma::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        ASSERT_TRUE(config.warps == 4 || problem.dv > kValueRows) << "half of the block would have no rows";
        ASSERT_NE(explain_prefill_mma(problem, {}), "");
    }
}

TEST(PrefillKernel, HopperHasItsOwnAndTheRestShareOne) {
    using jit::Prefill;
    EXPECT_EQ(prefill_kernel(true, true, 128, 90, Prefill::automatic), PrefillKernel::wgmma);
    EXPECT_EQ(prefill_kernel(true, true, 136, 90, Prefill::automatic), PrefillKernel::mma);
    EXPECT_EQ(prefill_kernel(true, false, 128, 90, Prefill::automatic), PrefillKernel::mma) << "gates far apart";
    for (const int capability : {80, 86, 89, 100, 120})
        EXPECT_EQ(prefill_kernel(true, true, 128, capability, Prefill::automatic), PrefillKernel::mma) << capability;
    EXPECT_EQ(prefill_kernel(true, true, 128, 75, Prefill::mma), PrefillKernel::recurrent);
    for (const Prefill wanted : {Prefill::automatic, Prefill::mma, Prefill::recurrent})
        EXPECT_EQ(prefill_kernel(false, true, 128, 90, wanted), PrefillKernel::recurrent)
            << "rows that do not start on 16 bytes";
    EXPECT_EQ(prefill_kernel(true, true, 128, 90, Prefill::mma), PrefillKernel::mma);
    EXPECT_EQ(prefill_kernel(true, true, 128, 90, Prefill::recurrent), PrefillKernel::recurrent);
}

TEST(DecodeHeuristic, AModelsShapesNeedAHandfulOfKernels) {
    Random random;
    std::set<std::string> chosen;
    for (int i = 0; i < kProblems; ++i) {
        DecodeProblem problem = random_decode(random);
        problem.dk = problem.dv = 128;
        problem.io = DType::bf16;
        problem.state = DType::f32;
        problem.fused_gates = true;
        chosen.insert(to_text(decode_choice(problem, {}).config));
    }
    EXPECT_GE(chosen.size(), 2U);
    EXPECT_LE(chosen.size(), 4U);
}

TEST(DecodeHeuristic, ChoosesOnlyWhatIsRegistered) {
    Random random;
    const auto all = decode_configurations();
    for (int i = 0; i < kProblems; ++i) {
        const DecodeProblem problem = random_decode(random);
        const DecodeConfig config = decode_choice(problem, device_of(random.one_of({46, 108, 132, 160}))).config;
        ASSERT_NE(std::ranges::find(all, config), all.end()) << to_text(config);
    }
}

TEST(DecodeHeuristic, TheKernelCanDoTheProblem) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        const DecodeProblem problem = random_decode(random);
        const auto [config, steps] = decode_choice(problem, {});
        ASSERT_EQ(config.head_k, problem.dk);
        ASSERT_EQ(config.io, problem.io);
        ASSERT_EQ(config.state, problem.state);
        ASSERT_EQ(config.fused_gates, problem.fused_gates);
        ASSERT_GE(steps, 1);
        ASSERT_LE(steps, config.layout().lanes);
        ASSERT_TRUE(steps == 1 || config.stages > 0) << "several steps go through shared memory";
        ASSERT_NE(explain_decode(problem, {}), "");
    }
}

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

// "{.a = 1, .b = DType::f32}" -> {"a", "1"}, {"b", "DType::f32"}
std::vector<std::pair<std::string, std::string>> fields_of(const std::string& text) {
    static const std::regex field(R"(\.(\w+) = ([\w:]+))");
    std::vector<std::pair<std::string, std::string>> found;
    for (std::sregex_iterator it(text.begin(), text.end(), field), end; it != end; ++it) found.emplace_back((*it)[1], (*it)[2]);
    return found;
}

TEST(ConfigurationText, NamesEveryFieldOnceInOrder) {
    for (const RecurrentConfig& config : recurrent_configurations()) {
        const auto fields = fields_of(to_text(config));
        size_t i = 0;
        config.fields([&](const char* name, auto value) {
            ASSERT_LT(i, fields.size());
            EXPECT_EQ(fields[i].first, name);
            if constexpr (std::is_same_v<decltype(value), DType>) {
                EXPECT_EQ(fields[i].second, std::string("DType::") + name_of(value));
            } else {
                EXPECT_EQ(fields[i].second, fmt::format("{}", value));
            }
            ++i;
        });
        EXPECT_EQ(i, fields.size());
    }
}

TEST(PieceHeuristics, ChooseOnlyWhatIsRegisteredAndHoldsTheKeys) {
    Random random;
    const auto in = [](const auto& all, const auto& config) { return std::ranges::find(all, config) != all.end(); };
    for (int i = 0; i < kProblems; ++i) {
        const RecurrentProblem drawn = random_problem(random);
        const PieceProblem problem{drawn.sequences, drawn.heads, drawn.dk, drawn.dv, drawn.state, drawn.aligned};
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

TEST(PieceHeuristics, FewSequencesAreSpreadOverMoreBlocks) {
    const jit::DeviceTraits device = device_of(132);
    const PieceProblem one{1, 32, 128, 128, DType::f32, true}, eight{8, 32, 128, 128, DType::f32, true};
    EXPECT_LT(seq_state_update_config(one, device).rows_per_block(), seq_state_update_config(eight, device).rows_per_block());
    EXPECT_NE(explain_seq_state_update(one, device).find("128 blocks"), std::string::npos);
}

TEST(Registry, TextsAndSourcesAreDistinct) {
    for (const RegisteredKernel& kernel : registry()) {
        std::set<std::string> texts, codes;
        for (const RegisteredConfiguration& each : kernel.configurations) {
            EXPECT_TRUE(texts.insert(each.source.configuration).second) << each.source.configuration;
            EXPECT_TRUE(codes.insert(each.source.code).second) << each.source.code;
            EXPECT_NE(each.source.code.find(each.source.configuration), std::string::npos);
            EXPECT_NE(each.source.code.find("<gdn_cuda/kernels/" + kernel.family + "/" + kernel.name + ".cuh>"),
                      std::string::npos);
        }
        EXPECT_FALSE(texts.empty()) << kernel.name;
    }
}

TEST(Registry, EveryConfigurationFitsABlock) {
    const jit::DeviceTraits hopper;
    for (const RegisteredKernel& kernel : registry()) {
        for (const RegisteredConfiguration& each : kernel.configurations) {
            EXPECT_GE(each.shared_bytes, 0) << kernel.name << " " << each.source.configuration << ": a plan with no size";
            EXPECT_LE(each.shared_bytes, hopper.shared_bytes_per_block) << kernel.name << " " << each.source.configuration;
            EXPECT_GT(each.threads, 0);
            EXPECT_LE(each.threads, 1024);
            EXPECT_EQ(each.threads % 32, 0) << kernel.name;
        }
    }
}

TEST(Registry, WhatAnArchitectureRunsFitsIt) {
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
        const auto device = jit::DeviceTraits::for_arch(arch);
        for (const RegisteredKernel& kernel : registry()) {
            if (device.capability < kernel.min_capability || device.capability > kernel.max_capability) continue;
            for (const RegisteredConfiguration& each : kernel.configurations)
                EXPECT_LE(each.shared_bytes, device.shared_bytes_per_block)
                    << arch << ": " << kernel.name << " " << each.source.configuration;
        }
    }
}

TEST(Registry, KernelsAreNamedOnce) {
    std::set<std::string> names;
    for (const RegisteredKernel& kernel : registry()) {
        EXPECT_TRUE(names.insert(kernel.family + "/" + kernel.name).second);
        EXPECT_FALSE(kernel.summary.empty());
        EXPECT_GE(kernel.min_capability, 80);
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
