// The family's environment variables.
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

}  // namespace
}  // namespace gdn_cuda::test
