// What gdn/decode_layer is configured with: blocks for a key head, shared memory for few tokens or many.
#include <gtest/gtest.h>

#include <algorithm>

#include "families/gdn/decode_layer.hpp"

namespace gdn_cuda::gdn {
namespace {

DecodeLayerProblem problem_of(i64 sequences, i64 tokens, int dk = 128) {
    return {.sequences = sequences,
            .tokens = tokens,
            .key_heads = 16,
            .heads_per_key = 2,
            .dk = dk,
            .dv = 128,
            .io = DType::bf16,
            .state = DType::f32};
}

TEST(DecodeLayerHeuristic, ChoosesOnlyWhatIsRegistered) {
    jit::DeviceTraits ampere;
    ampere.capability = 80;
    for (const i64 sequences : {1, 64, 100000})
        for (int tokens = 1; tokens <= kMostLayerTokens; ++tokens)
            for (const int dk : kExactHeadK) {
                const DecodeLayerConfig config = decode_layer_config(problem_of(sequences, tokens, dk), {});
                EXPECT_GE(config.tokens, tokens);
                EXPECT_NE(std::ranges::find(kDecodeLayerConfigurations, config), kDecodeLayerConfigurations.end());
                const DecodeLayerConfig alone = decode_layer_config(problem_of(sequences, tokens, dk), ampere);
                EXPECT_NE(std::ranges::find(kDecodeLayerAloneConfigurations, alone), kDecodeLayerAloneConfigurations.end());
            }
}

TEST(DecodeLayerHeuristic, FewSequencesHaveMoreBlocks) {
    int before = kLayerBlocks.front();
    EXPECT_EQ(decode_layer_config(problem_of(1, 1), {}).blocks, before);
    for (i64 sequences = 1; sequences <= 4096; sequences *= 2) {
        const int blocks = decode_layer_config(problem_of(sequences, 1), {}).blocks;
        EXPECT_LE(blocks, before);
        before = blocks;
    }
    EXPECT_EQ(before, kLayerBlocks.back());
}

template <class Spec>
void expect_that_it_fits() {
    for (const DecodeLayerConfig& config : Spec::configurations()) {
        EXPECT_LE(Spec::shared_bytes(config), kSharedBytesEverywhere);
        EXPECT_GE(config.stages(), 2);
        EXPECT_GE(config.blocks * config.rows_per_block(), kMostHeadRows);
        EXPECT_LE(config.tokens * kMostPartHeads, config.threads());  // a thread has one gate of a part at most
    }
}

TEST(DecodeLayerHeuristic, SharedMemoryIsThatOfEveryGpuAndHoldsAWholeHead) {
    expect_that_it_fits<DecodeLayer>();
    expect_that_it_fits<DecodeLayerAlone>();
}

}  // namespace
}  // namespace gdn_cuda::gdn
