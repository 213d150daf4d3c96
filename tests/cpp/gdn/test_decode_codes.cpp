// Which steps gdn/decode_codes takes from gdn/decode, and its configurations.
#include <gtest/gtest.h>

#include "families/gdn/decode_codes.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr DecodeProblem problem_of(i64 sequences) {
    return {
        .sequences = sequences, .heads = 32, .dk = 128, .dv = 128, .io = DType::bf16, .state = DType::i8, .fused_gates = true};
}
bool takes(const DecodeProblem& problem, const DecodeArgs& args = {}) {
    return decode_codes_config(problem, args, 132).has_value();
}

TEST(DecodeCodesHeuristic, TakesManyHeadsOfCodes) {
    EXPECT_TRUE(takes(problem_of(64)));
    EXPECT_FALSE(takes(problem_of(16)));
    DecodeProblem other = problem_of(64);
    other.state = DType::bf16;
    EXPECT_FALSE(takes(other));
    other = problem_of(64);
    other.channel_gates = true;
    EXPECT_FALSE(takes(other));
    other = problem_of(64);
    other.dv = 120;
    EXPECT_FALSE(takes(other)) << "rows are no multiple of a tile";
    other = problem_of(64);
    other.dk = 192;
    EXPECT_FALSE(takes(other));
}

TEST(DecodeCodesHeuristic, NeedsScalesAndValuesInWholeUnits) {
    DecodeArgs args{};
    args.scales_in_slot = 32 * 128 * 4 + 2;
    EXPECT_FALSE(takes(problem_of(64), args));
    args.scales_in_slot = 32 * 128 * 4 + 4;
    EXPECT_TRUE(takes(problem_of(64), args));
    args.value.head = 132;
    EXPECT_FALSE(takes(problem_of(64), args));
}

TEST(DecodeCodesHeuristic, WarpsTakeAllRows) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        DecodeProblem problem = problem_of(random.size(4096));
        problem.heads = static_cast<int>(random.size(96));
        problem.dv = 16 * static_cast<int>(random.size(16));
        const CodeStepUnits all = code_step_units(kDecodeCodesConfigurations[0], problem.sequences, problem.heads, problem.dv,
                                                  1, random.one_of({46, 108, 132, 160}));
        const i64 blocks = code_step_blocks(all)[0];
        ASSERT_EQ(all.tiles << all.part_bits, problem.dv / 16);
        ASSERT_EQ(all.units, problem.sequences * problem.heads << all.part_bits);
        ASSERT_EQ(i64{all.sequences_ahead} * all.columns + all.columns_ahead, blocks * CodeStepConfig::kWarps);
        ASSERT_GE(blocks, 1);
        ASSERT_LE(blocks, ceil_div(all.units, CodeStepConfig::kWarps)) << "a block without a unit";
    }
}

TEST(DecodeCodesHeuristic, FitsEveryGpu) {
    for (const CodeStepConfig& config : kDecodeCodesConfigurations) {
        EXPECT_LE(DecodeCodes::shared_bytes(config), kSharedBytesEverywhere) << to_text(config);
        EXPECT_EQ(from_text<CodeStepConfig>(to_text(config)), config);
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
