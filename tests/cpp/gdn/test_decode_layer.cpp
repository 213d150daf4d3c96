// What gdn/decode_layer is configured with: shared memory for few tokens or many, within what every GPU has.
#include <gtest/gtest.h>

#include <algorithm>

#include "families/gdn/decode_layer.hpp"

namespace gdn_cuda::gdn {
namespace {

TEST(DecodeLayerHeuristic, ChoosesOnlyWhatIsRegistered) {
    for (int tokens = 1; tokens <= kMostLayerTokens; ++tokens)
        for (const int dk : kExactHeadK) {
            const DecodeLayerConfig config = decode_layer_config({.sequences = 64,
                                                                  .tokens = tokens,
                                                                  .key_heads = 16,
                                                                  .heads_per_key = 2,
                                                                  .dk = dk,
                                                                  .dv = 128,
                                                                  .io = DType::bf16,
                                                                  .state = DType::f32});
            EXPECT_GE(config.tokens, tokens);
            EXPECT_NE(std::ranges::find(kDecodeLayerConfigurations, config), kDecodeLayerConfigurations.end());
        }
}

TEST(DecodeLayerHeuristic, SharedMemoryIsThatOfEveryGpuAndHoldsWholeHeads) {
    for (const DecodeLayerConfig& config : kDecodeLayerConfigurations) {
        EXPECT_LE(DecodeLayer::shared_bytes(config), kSharedBytesEverywhere);
        EXPECT_GE(config.stages(), 2);
        EXPECT_GE(config.part_rows(), 256);
        EXPECT_LE(config.tokens * kMostPartHeads, config.threads());  // a thread has one gate of a part at most
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
