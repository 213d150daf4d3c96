// Configurations of layers/decode_layer: blocks per key head, shared memory for few or many tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "families/layers/decode_layer.hpp"

namespace gdn_cuda::layers {
namespace {

DecodeLayerProblem problem_of(i64 sequences, i64 tokens, int dk = 128, int heads_per_key = 2) {
    return {.sequences = sequences,
            .tokens = tokens,
            .key_heads = 16,
            .heads_per_key = heads_per_key,
            .dk = dk,
            .dv = 128,
            .io = DType::bf16,
            .state = DType::f32,
            .plain = true};
}

TEST(DecodeLayerHeuristic, ChoosesOnlyWhatIsRegistered) {
    for (const i64 sequences : {1, 64, 100000})
        for (int tokens = 1; tokens <= kMostLayerTokens; ++tokens)
            for (const int dk : gdn::kExactHeadK) {
                const DecodeLayerConfig config = decode_layer_choice(problem_of(sequences, tokens, dk), {}).config;
                EXPECT_GE(config.tokens, tokens);
                EXPECT_NE(std::ranges::find(kDecodeLayerConfigurations, config), kDecodeLayerConfigurations.end());
            }
}

TEST(DecodeLayerHeuristic, GatesOfChannelsAreRegisteredForOneToken) {
    for (const int dk : gdn::kExactHeadK)
        for (const bool plain : {true, false})
            for (const DType state : {DType::f32, DType::bf16}) {
                DecodeLayerProblem problem = problem_of(64, 1, dk, 1);
                problem.plain = plain, problem.state = state, problem.channel_gates = true;
                const DecodeLayerConfig config = decode_layer_choice(problem, {}).config;
                EXPECT_TRUE(config.channel_gates);
                EXPECT_NE(std::ranges::find(kDecodeLayerConfigurations, config), kDecodeLayerConfigurations.end());
            }
    for (const DecodeLayerConfig& config : kDecodeLayerConfigurations) EXPECT_TRUE(!config.channel_gates || config.tokens == 1);
}

TEST(DecodeLayerHeuristic, FewSequencesHaveMoreBlocks) {
    int before = kRowQuarters;
    EXPECT_EQ(decode_layer_choice(problem_of(1, 1), {}).parts, before);
    for (i64 sequences = 1; sequences <= 4096; sequences *= 2) {
        const int parts = decode_layer_choice(problem_of(sequences, 1), {}).parts;
        EXPECT_LE(parts, before);
        before = parts;
    }
    EXPECT_EQ(before, 1);
}

TEST(DecodeLayerHeuristic, ValueHeadsOfAKeyHeadAreACluster) {
    for (const auto& [heads_per_key, at_once] : {std::pair{1, 1}, {2, 2}, {3, 3}, {9, 3}, {16, 8}, {17, 1}}) {
        const DecodeLayerChoice choice = decode_layer_choice(problem_of(1, 1, 128, heads_per_key), {});
        EXPECT_EQ(choice.heads_at_once, at_once);
        EXPECT_LE(choice.blocks(), kMostLayerBlocks);
    }
    jit::DeviceTraits ampere;
    ampere.capability = 80;
    EXPECT_EQ(decode_layer_choice(problem_of(1, 1), ampere).blocks(), 1);
}

TEST(DecodeLayerHeuristic, SharedMemoryIsThatOfEveryGpu) {
    for (const DecodeLayerConfig& config : kDecodeLayerConfigurations) {
        EXPECT_LE(DecodeLayer::shared_bytes(config), kSharedBytesEverywhere);
        EXPECT_GE(config.stages(), 2);
        EXPECT_LE(config.tokens, config.threads());  // a thread computes the gates of at most one token
    }
}

}  // namespace
}  // namespace gdn_cuda::layers
