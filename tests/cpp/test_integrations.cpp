// The engines that GDN_INTEGRATIONS names.
#include "integrations.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

TEST(Integrations, AreWordsWithCommas) {
    const auto asked = [](const char* text) {
        return in_child({{"GDN_INTEGRATIONS", text}},
                        [] {
                            std::string names;
                            for (const std::string& name : requested_integrations()) names += name + ";";
                            return names;
                        })
            .value;
    };
    EXPECT_EQ(asked(""), "");
    EXPECT_EQ(asked("sglang"), "sglang;");
    EXPECT_EQ(asked("vLLM, sglang"), "vllm;sglang;");
    for (const char* text : {"vlm", "vllm;sglang", "vllm sglang", ",vllm", "1"})
        EXPECT_CONTAINS(
            asked(text),
            std::string("error: GDN_INTEGRATIONS: expected vllm, sglang, or both with a comma between, got \"") + text + "\"");
}

}  // namespace
}  // namespace gdn_cuda::test
