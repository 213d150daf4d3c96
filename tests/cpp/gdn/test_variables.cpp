// Environment variables of GDN.
#include "families/common/code_step.hpp"
#include "families/gdn/variables.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

TEST(GdnVariables, ThePrefillKernel) {
    const auto wanted = [](const char* text) {
        return in_child({{"GDN_PREFILL", text}}, [] { return std::string(gdn::name_of(gdn::wanted_prefill())); }).value;
    };
    EXPECT_EQ(wanted(""), "auto");
    EXPECT_EQ(wanted("auto"), "auto");
    EXPECT_EQ(wanted("MMA"), "mma");
    EXPECT_EQ(wanted("recurrent"), "recurrent");
    EXPECT_CONTAINS(wanted("wgmma"), "GDN_PREFILL: expected auto, mma or recurrent, got \"wgmma\"");
}

TEST(GdnVariables, TheWindowOfKimiDeltaAttention) {
    const auto window = [](const char* text) {
        return in_child({{"GDN_KDA_WINDOW", text}}, [] { return std::to_string(gdn::kKdaWindowVariable.value()); }).value;
    };
    EXPECT_EQ(window(""), "0");
    EXPECT_EQ(window("auto"), "0");
    EXPECT_EQ(window("3"), "3");
    EXPECT_CONTAINS(window("0"), "GDN_KDA_WINDOW: expected auto, or a number from 1 to 1048576, got \"0\"");
}

TEST(GdnVariables, TheSegmentsOfKimiDeltaAttention) {
    const auto segments = [](const char* text) {
        return in_child({{"GDN_KDA_SEGMENTS", text}}, [] { return std::to_string(gdn::kKdaSegmentsVariable.value()); }).value;
    };
    EXPECT_EQ(segments("auto"), "0");
    EXPECT_EQ(segments("1"), "1");
    EXPECT_EQ(segments("256"), "256");
    EXPECT_CONTAINS(segments("257"), "GDN_KDA_SEGMENTS: expected auto, or a number from 1 to 256, got \"257\"");
}

TEST(GdnVariables, TheLaunchOfKimiDeltaAttention) {
    const auto ahead = [](const char* text) {
        return in_child({{"GDN_KDA_AHEAD", text}}, [] { return std::to_string(gdn::kKdaAheadVariable.value()); }).value;
    };
    const auto number = [](gdn::WantedSwitch wanted) { return std::to_string(static_cast<int>(wanted)); };
    EXPECT_EQ(ahead("auto"), number(gdn::WantedSwitch::automatic));
    EXPECT_EQ(ahead("0"), number(gdn::WantedSwitch::never));
    EXPECT_EQ(ahead("1"), number(gdn::WantedSwitch::always));
    EXPECT_CONTAINS(ahead("2"), "GDN_KDA_AHEAD: expected auto, 0 or 1, got \"2\"");
}

TEST(GdnVariables, TheKernelOfStepsOnCodes) {
    const auto wanted = [](const char* text) {
        return in_child({{"GDN_DECODE_CODES", text}}, [] { return std::to_string(gdn::kDecodeCodesVariable.value()); }).value;
    };
    EXPECT_EQ(wanted("auto"), "0");
    EXPECT_EQ(wanted("0"), "1");
    EXPECT_EQ(wanted("1"), "2");
    EXPECT_CONTAINS(wanted("off"), "GDN_DECODE_CODES: expected auto, 0 or 1, got \"off\"");
}

TEST(GdnVariables, TheSegmentsOfTheBackwardOfKimiDeltaAttention) {
    const auto segments = [](const char* text) {
        return in_child({{"GDN_KDA_BACKWARD_SEGMENTS", text}},
                        [] { return std::to_string(gdn::kKdaBackwardSegmentsVariable.value()); })
            .value;
    };
    EXPECT_EQ(segments("auto"), "0");
    EXPECT_EQ(segments("128"), "128");
    EXPECT_CONTAINS(segments("129"), "GDN_KDA_BACKWARD_SEGMENTS: expected auto, or a number from 1 to 128, got \"129\"");
}

}  // namespace
}  // namespace gdn_cuda::test
