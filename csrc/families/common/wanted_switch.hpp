// Values of environment variables that are auto, 0 or 1.
#pragma once

#include <optional>
#include <string>

#include "../../jit/env.hpp"

namespace gdn_cuda::gdn {

// auto, 0 or 1
enum class WantedSwitch { automatic, never, always };
inline std::optional<int> parse_wanted_switch(const std::string& text) {
    if (text == "auto") return static_cast<int>(WantedSwitch::automatic);
    if (text == "0") return static_cast<int>(WantedSwitch::never);
    if (text == "1") return static_cast<int>(WantedSwitch::always);
    return std::nullopt;
}

}  // namespace gdn_cuda::gdn
