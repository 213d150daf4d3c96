#include "integrations.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <string_view>

#include "jit/env.hpp"

namespace gdn_cuda {
namespace {

constexpr std::string_view kEngines[] = {"vllm", "sglang"};

// Returns a bit for each engine. Names are separated by commas; blanks are ignored.
std::optional<int> parse_engines(const std::string& text) {
    std::string words = text;
    std::erase_if(words, [](unsigned char c) { return std::isspace(c) != 0; });
    int engines = 0;
    for (std::string_view rest = words; !rest.empty();) {
        const std::string_view word = rest.substr(0, rest.find(','));
        const auto found = std::ranges::find(kEngines, word);
        if (found == std::end(kEngines)) return std::nullopt;
        engines |= 1 << (found - std::begin(kEngines));
        rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    }
    return engines;
}

const jit::Setting kIntegrations({"GDN_INTEGRATIONS", "",
                                  "engines whose plugins switch gdn_cuda on: vllm, sglang, or both with a comma between"},
                                 "vllm, sglang, or both with a comma between", parse_engines);

}  // namespace

std::vector<std::string> requested_integrations() {
    const int asked = kIntegrations.value();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::size(kEngines); ++i)
        if ((asked >> i & 1) != 0) names.emplace_back(kEngines[i]);
    return names;
}

}  // namespace gdn_cuda
