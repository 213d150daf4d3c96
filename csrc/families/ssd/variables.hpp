// Environment variables of the family.
#pragma once

#include <optional>
#include <string>

#include "../../jit/env.hpp"

namespace gdn_cuda::ssd {

enum class WantedScan { automatic, mma };

inline const char* name_of(WantedScan wanted) {
    return wanted == WantedScan::automatic ? "auto" : "mma";
}

inline std::optional<int> parse_wanted_scan(const std::string& text) {
    for (const WantedScan wanted : {WantedScan::automatic, WantedScan::mma})
        if (text == name_of(wanted)) return static_cast<int>(wanted);
    return std::nullopt;
}

inline const jit::Setting kScanVariable({"GDN_SSD_PREFILL", "auto",
                                         "the kernel of Mamba-2's scan where it can run: auto or mma"},
                                        "auto or mma", parse_wanted_scan);

inline WantedScan wanted_scan() {
    return static_cast<WantedScan>(kScanVariable.value());
}

}  // namespace gdn_cuda::ssd
