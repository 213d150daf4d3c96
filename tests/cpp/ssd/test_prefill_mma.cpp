// ssd/prefill_mma on the host.
#include <gtest/gtest.h>

#include "families/ssd/prefill_mma.hpp"
#include "families/ssd/variables.hpp"
#include "support.hpp"

namespace gdn_cuda::ssd {
namespace {

jit::DeviceTraits with_shared_bytes(int bytes) {
    return {.shared_bytes_per_block = bytes};
}

TEST(SsdPrefillMma, ChoosesWhatIsRegisteredAndFitsTheGpu) {
    for (const int bytes : {kSharedBytesEverywhere, 163 << 10, 227 << 10})
        for (const DType io : {DType::bf16, DType::f16})
            for (int states = 8; states <= 256; states += 8)
                for (const bool gated : {false, true}) {
                    const SsdMmaConfig config = PrefillMma::choose(io, states, gated, with_shared_bytes(bytes));
                    ASSERT_NE(std::ranges::find(kSsdMmaConfigurations, config), kSsdMmaConfigurations.end()) << to_text(config);
                    ASSERT_LE(PrefillMma::shared_bytes(config), bytes) << to_text(config);
                    ASSERT_GE(config.states, states);
                    ASSERT_EQ(config.gated, gated);
                }
}

TEST(SsdPrefillMma, TakesTwoStagesWhereTheyFit) {
    const auto stages = [](int states, bool gated, int bytes) {
        return PrefillMma::choose(DType::bf16, states, gated, with_shared_bytes(bytes)).stages;
    };
    EXPECT_EQ(stages(64, true, kSharedBytesEverywhere), 2);
    EXPECT_EQ(stages(128, false, kSharedBytesEverywhere), 2);
    EXPECT_EQ(stages(128, true, kSharedBytesEverywhere), 1);
    EXPECT_EQ(stages(128, true, 163 << 10), 2);
    EXPECT_EQ(stages(256, false, 227 << 10), 1);
}

TEST(SsdVariables, TheKernelOfTheScan) {
    const auto wanted = [](const char* text) {
        return test::in_child({{"GDN_SSD_PREFILL", text}}, [] { return std::string(name_of(wanted_scan())); }).value;
    };
    EXPECT_EQ(wanted(""), "auto");
    EXPECT_EQ(wanted("MMA"), "mma");
    EXPECT_CONTAINS(wanted("wgmma"), "GDN_SSD_PREFILL: expected auto or mma, got \"wgmma\"");
}

}  // namespace
}  // namespace gdn_cuda::ssd
