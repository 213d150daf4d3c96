// How the backward on Hopper is spread over blocks: chunks that are prepared, chains that are split along time.
#include <gtest/gtest.h>

#include "families/gdn/backward_chain.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr int kOfOneCard = 132;

GdnCall call_of(int sequences, int tokens, int heads, int dk = 128, int dv = 128) {
    GdnCall call{};
    call.sequences = sequences;
    call.tokens = tokens;
    call.heads = heads;
    call.heads_per_key = 1;
    call.dk = dk;
    call.dv = dv;
    return call;
}

TEST(BackwardChain, IsSplitWhereHeadsAreFewAndSequencesLong) {
    const auto segments = [](const GdnCall& call, int chains = 2) { return BackwardChain::segments(call, chains, kOfOneCard); };
    EXPECT_EQ(segments(call_of(1, 8192, 4)), 5);
    EXPECT_EQ(segments(call_of(1, 8192, 8)), 3);
    EXPECT_EQ(segments(call_of(1, 8192, 16)), 1);
    EXPECT_EQ(segments(call_of(1, 1180, 1, 64, 40)), 7);  // FEW_HEADS of tests/gdn/gradients_on_device.py
    EXPECT_EQ(segments(call_of(8, 8192, 4)), 1);
    EXPECT_EQ(segments(call_of(1, 512, 4)), 1);
    EXPECT_EQ(segments(call_of(1, 8192, 8), 1), 5);  // one chain has checkpoints
    EXPECT_EQ(segments(call_of(1, 8192, 16), 1), 3);
    EXPECT_EQ(segments(call_of(1, 8192, 32), 1), 1);
}

TEST(BackwardChain, HasNoEmptySegmentAndBlocksForAll) {
    for (int chunks = 1; chunks <= 600; ++chunks)
        for (const int heads : {1, 2, 3, 4, 8, 11})
            for (const int chains : {1, 2}) {
                const GdnCall call = call_of(1, chunks * kChunk, heads);
                const int segments = BackwardChain::segments(call, chains, kOfOneCard);
                const i64 length = ceil_div(i64{chunks}, i64{segments});
                EXPECT_LT((segments - 1) * length, chunks) << chunks << " chunks, " << heads << " heads";
                EXPECT_TRUE(segments == 1 || chains * heads * (2 + (segments - 2) * 4) <= kOfOneCard);
            }
}

TEST(BackwardChain, PackedSequencesAreNotSplit) {
    GdnCall call = call_of(1, 8192, 4);
    const int offsets[] = {0, 8192};
    call.cu_seqlens.data = offsets;
    EXPECT_EQ(BackwardChain::segments(call, 2, kOfOneCard), 1);
}

TEST(BackwardPrepare, SharesChunksOutToAllMultiprocessors) {
    const auto blocks = [](i64 pairs, i64 chunks) { return pairs * BackwardPrepare::preparers(pairs, chunks, kOfOneCard); };
    EXPECT_EQ(blocks(32, 128), 128);
    EXPECT_EQ(blocks(8, 128), 128);
    EXPECT_EQ(blocks(1, 5), 5);
    for (const i64 pairs : {1, 7, 100, 132, 133, 256, 1000})
        for (const i64 chunks : {1, 2, 64, 512}) {
            const int preparers = BackwardPrepare::preparers(pairs, chunks, kOfOneCard);
            EXPECT_GE(preparers, 1);
            EXPECT_LE(preparers, chunks);
        }
}

}  // namespace
}  // namespace gdn_cuda::gdn
