// ssd/backward_mma on the host.
#include <gtest/gtest.h>

#include "families/ssd/backward_mma.hpp"

namespace gdn_cuda::ssd {
namespace {

TEST(SsdBackwardMma, ChoosesTheFewestStatesThatAreRegistered) {
    for (const DType io : {DType::bf16, DType::f16})
        for (int states = 8; states <= 256; states += 8) {
            const SsdBackwardMmaConfig config = BackwardMma::choose(io, states);
            ASSERT_NE(std::ranges::find(kSsdBackwardMmaConfigurations, config), kSsdBackwardMmaConfigurations.end())
                << to_text(config);
            ASSERT_GE(config.states, states);
            ASSERT_TRUE(config.states == 64 || config.states < 2 * states) << to_text(config);
        }
}

}  // namespace
}  // namespace gdn_cuda::ssd
