#include "errors.hpp"

#include <algorithm>
#include <string_view>

#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

// The number of bytes of the character at the start of `text`; 0 if it is invalid.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    if (byte(0) < 0x80) return 1;
    const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
    if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
    for (std::size_t at = 1; at < length; ++at)
        if ((byte(at) & 0xc0) != 0x80) return 0;
    // Overlong, a surrogate, or above U+10FFFF.
    const bool wrong = (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) > 0x9f) ||
                       (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f);
    return wrong ? 0 : length;
}

}  // namespace

std::string readable(const std::string& text) {
    std::string result;
    result.reserve(text.size());
    for (std::string_view rest = text; !rest.empty();) {
        const std::size_t length = utf8_length(rest);
        if (length == 0)
            result += fmt::format("\\x{:02x}", static_cast<unsigned char>(rest.front()));
        else
            result += rest.substr(0, length);
        rest.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return result;
}

}  // namespace gdn_cuda::jit
