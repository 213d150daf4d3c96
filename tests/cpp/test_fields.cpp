// A configuration as text.
#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "families/gdn/recurrent.hpp"

namespace gdn_cuda::gdn {
namespace {

// "{.a = 1, .b = DType::f32}" -> {"a", "1"}, {"b", "DType::f32"}
std::vector<std::pair<std::string, std::string>> fields_of(const std::string& text) {
    std::vector<std::pair<std::string, std::string>> found;
    for (size_t dot = text.find('.'), end; dot != std::string::npos; dot = text.find('.', end)) {
        const size_t equals = text.find(" = ", dot);
        end = text.find_first_of(",}", equals);
        found.emplace_back(text.substr(dot + 1, equals - dot - 1), text.substr(equals + 3, end - equals - 3));
    }
    return found;
}

TEST(ConfigurationText, NamesEveryFieldOnceInOrder) {
    for (const RecurrentConfig& config : recurrent_configurations()) {
        const auto fields = fields_of(to_text(config));
        size_t i = 0;
        RecurrentConfig::fields(config, [&](const char* name, auto value) {
            ASSERT_LT(i, fields.size());
            EXPECT_EQ(fields[i].first, name);
            if constexpr (std::is_same_v<decltype(value), DType>) {
                EXPECT_EQ(fields[i].second, std::string("DType::") + name_of(value));
            } else {
                EXPECT_EQ(fields[i].second, fmt::format("{}", value));
            }
            ++i;
        });
        EXPECT_EQ(i, fields.size());
    }
}

}  // namespace
}  // namespace gdn_cuda::gdn
