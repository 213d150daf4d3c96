// When common/transposed_copy uses 16-byte vectors, and its grid.
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "families/common/transposed_copy.hpp"

namespace gdn_cuda::common {
namespace {

// Addresses that are never dereferenced.
const void* address(uintptr_t at) {
    return reinterpret_cast<const void*>(at);
}
TransposedCopyArgs projection_args() {
    return {
        .from = address(1 << 20), .to = reinterpret_cast<void*>(1 << 21), .batch = 4096, .row = 128, .rows = 24, .columns = 64};
}
std::pair<bool, bool> vectors(int element_bytes, TransposedCopyArgs args) {
    TransposedCopy::choose_vectors({element_bytes}, args);
    return {args.loads_vectors, args.stores_vectors};
}

TEST(TransposedCopy, MovesVectorsWhereAllOfThemBeginOn16Bytes) {
    const auto changed = [](auto member, auto value) {
        TransposedCopyArgs args = projection_args();
        args.*member = value;
        return args;
    };
    using Args = TransposedCopyArgs;
    for (const int bytes : {2, 4}) {
        const int less = 8 / bytes;  // elements of half a vector
        const std::pair both{true, true}, only_stores{false, true}, only_loads{true, false};
        EXPECT_EQ(vectors(bytes, projection_args()), both);
        EXPECT_EQ(vectors(bytes, changed(&Args::from, address((1 << 20) + 8))), only_stores);
        EXPECT_EQ(vectors(bytes, changed(&Args::batch, i64{4096} + less)), only_stores);
        EXPECT_EQ(vectors(bytes, changed(&Args::row, i64{128} + less)), only_stores);
        EXPECT_EQ(vectors(bytes, changed(&Args::columns, 64 - less)), only_stores);
        EXPECT_EQ(vectors(bytes, changed(&Args::rows, 24 + less)), only_loads);
        EXPECT_EQ(vectors(bytes, changed(&Args::row, i64{0})), both) << "expanded";
    }
    TransposedCopyArgs odd = projection_args();
    odd.rows = 20, odd.columns = 60;
    EXPECT_EQ(vectors(4, odd), std::pair(true, true));
    EXPECT_EQ(vectors(2, odd), std::pair(false, false));
}

TEST(TransposedCopy, HasABlockForEveryTile) {
    const auto blocks = [](int rows, int columns, i64 batches) {
        return TransposedCopy::blocks({.rows = rows, .columns = columns}, batches);
    };
    EXPECT_EQ(blocks(1, 1, 70'000), (Blocks{70'000, 1, 1}));
    EXPECT_EQ(blocks(64, 65, 3), (Blocks{6, 1, 1}));
    EXPECT_EQ(blocks(129, 128, 1), (Blocks{6, 1, 1}));
    constexpr int kMost = std::numeric_limits<int>::max();
    EXPECT_EQ(blocks(kMost, 2, 1), (Blocks{1 << 25, 1, 1}));
    EXPECT_EQ(blocks(kMost, kMost, 1), (Blocks{i64{1} << 50, 1, 1})) << "which a launch refuses";
}

TEST(TransposedCopy, FitsEveryGpu) {
    EXPECT_LE(sizeof(TransposedCopySharedPlan<TransposedCopyConfig{2}>), kSharedBytesEverywhere);
    EXPECT_LE(sizeof(TransposedCopySharedPlan<TransposedCopyConfig{4}>), kSharedBytesEverywhere);
    for (const TransposedCopyConfig& config : TransposedCopy::kConfigurations)
        EXPECT_EQ(from_text<TransposedCopyConfig>(to_text(config)), config);
}

}  // namespace
}  // namespace gdn_cuda::common
