// Whether strided tensors share memory, compared with every pair of elements; and the cost for layouts of real calls.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "operators/overlap.hpp"

namespace gdn_cuda {
namespace {

struct Layout {
    int64_t begin, element_bytes;
    std::vector<int64_t> sizes, strides;

    Strided strided() const {
        return {reinterpret_cast<const void*>(begin), sizes.data(), strides.data(), static_cast<int>(sizes.size()),
                element_bytes};
    }
    bool overlaps_itself() const {
        return gdn_cuda::overlaps_itself(sizes.data(), strides.data(), static_cast<int>(sizes.size()));
    }
    // The first byte of each element.
    std::vector<int64_t> elements() const {
        std::vector<int64_t> found = {begin};
        for (size_t d = 0; d < sizes.size(); ++d) {
            std::vector<int64_t> more;
            for (const int64_t each : found)
                for (int64_t i = 0; i < sizes[d]; ++i) more.push_back(each + i * strides[d] * element_bytes);
            found = more;
        }
        return found;
    }
    std::set<int64_t> bytes() const {
        std::set<int64_t> all;
        for (const int64_t first : elements())
            for (int64_t i = 0; i < element_bytes; ++i) all.insert(first + i);
        return all;
    }
};

class RandomLayouts {
  public:
    Layout next() {
        Layout layout{.begin = 1000 + draw(0, 40), .element_bytes = int64_t{1} << draw(0, 3), .sizes = {}, .strides = {}};
        for (int64_t d = draw(0, 4); d > 0; --d) {
            layout.sizes.push_back(draw(0, 9) == 0 ? 0 : draw(1, 5));
            layout.strides.push_back(draw(0, 12));
        }
        return layout;
    }

  private:
    int64_t draw(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(engine_); }
    std::mt19937_64 engine_{7};
};

TEST(Overlap, SharedBytesAreFoundAndNoOthers) {
    RandomLayouts layouts;
    int shared = 0, interleaved = 0;
    for (int i = 0; i < 5000; ++i) {
        const Layout a = layouts.next(), b = layouts.next();
        const std::set<int64_t> mine = a.bytes(), theirs = b.bytes();
        const bool expected = std::ranges::any_of(mine, [&](int64_t byte) { return theirs.contains(byte); });
        ASSERT_EQ(share_memory(a.strided(), b.strided()), expected) << i;
        ASSERT_EQ(share_memory(b.strided(), a.strided()), expected) << i;
        const Strided x = a.strided(), y = b.strided();
        shared += expected;
        interleaved += !expected && x.begin < y.end && y.begin < x.end;
    }
    EXPECT_GT(shared, 250);
    EXPECT_GT(interleaved, 100);
}

TEST(Overlap, ElementsAtOnePlaceAreFoundAndNoOthers) {
    RandomLayouts layouts;
    int overlapping = 0;
    for (int i = 0; i < 5000; ++i) {
        const Layout layout = layouts.next();
        std::vector<int64_t> elements = layout.elements();
        const bool expected = std::set(elements.begin(), elements.end()).size() != elements.size();
        ASSERT_EQ(layout.overlaps_itself(), expected) << i;
        overlapping += expected;
    }
    EXPECT_GT(overlapping, 250);
}

TEST(Overlap, StridesThatInterleaveWithoutOverlapAreDistinct) {
    EXPECT_FALSE((Layout{0, 4, {2, 3}, {3, 2}}.overlaps_itself()));  // 0 2 4 3 5 7: not in order, without overlap
    EXPECT_TRUE((Layout{0, 4, {2, 4}, {6, 2}}.overlaps_itself()));
}

TEST(Overlap, LayoutsOfServingAreDecidedAtOnce) {
    const auto pool = [](int64_t begin) { return Layout{begin, 4, {4096, 32, 128, 128}, {3 << 20, 128 * 128, 128, 1}}; };
    const auto slice = [](int64_t column) { return Layout{2 * column, 2, {8192, 16, 128}, {12288, 128, 1}}; };
    const Layout first = pool(0), second = pool(4 * 32 * 128 * 128), query = slice(0), out = slice(2048), late = slice(2047);
    EXPECT_FALSE(share_memory(first.strided(), second.strided()));
    EXPECT_FALSE(share_memory(query.strided(), out.strided()));
    EXPECT_TRUE(share_memory(query.strided(), late.strided()));

    Sums sums;  // two interleaved pools: rows of 3 MiB, each with two slots of 2 MiB in elements of 4 bytes
    for (int i = 0; i < 2; ++i)
        for (const auto& [stride, most] :
             {std::pair{3 << 22, 4095}, std::pair{128 * 128 * 4, 31}, std::pair{128 * 4, 127}, std::pair{4, 127}})
            sums.add(stride, most);
    EXPECT_FALSE(sums.reach(3 * (int64_t{1} << 34) + 1, 3 * (int64_t{1} << 34) + 3));
    EXPECT_LE(sums.steps(), 8);
}

TEST(Overlap, ASearchThatTakesTooLongFindsSharedMemory) {
    Layout a{0, 8, {}, {}};
    for (const int64_t stride : {1009, 1013, 1019, 1021, 1031, 1033}) {  // no stride nests, and every sum is even in bytes
        a.sizes.push_back(1 << 20);
        a.strides.push_back(stride);
    }
    const Layout b{4, 4, {1}, {1}};
    EXPECT_TRUE(share_memory(a.strided(), b.strided()));
}

}  // namespace
}  // namespace gdn_cuda
