#include <gtest/gtest.h>

#include <gdn_cuda/kernels/common/divisor.cuh>

namespace gdn_cuda {
namespace {

TEST(Divisor, TellsMultiples) {
    for (const unsigned divisor : {2u, 3u, 7u, 64u, 192u, 1024u, 65521u, 2147483647u, 4294967295u})
        for (const unsigned factor : {0u, 1u, 2u, 5u, 1000u, 4294967295u / divisor})
            for (const unsigned offset : {0u, 1u, divisor - 1}) {
                const unsigned x = factor * divisor + offset;  // may wrap around
                EXPECT_EQ(Divisor(divisor).divides(x), x % divisor == 0) << x << " by " << divisor;
            }
}

TEST(Divisor, DividesNothingByDefault) {
    for (const unsigned x : {0u, 1u, 64u, 4294967295u}) EXPECT_FALSE(Divisor().divides(x));
}

}  // namespace
}  // namespace gdn_cuda
