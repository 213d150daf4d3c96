// Environment variables of the family.
#pragma once

#include <charconv>
#include <optional>
#include <string>

#include "../../jit/env.hpp"

namespace gdn_cuda::scan {

// 0: auto
inline std::optional<int> parse_segments(const std::string& text) {
    constexpr int kMost = 128;
    if (text == "auto") return 0;
    int count = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc{} || rest != text.data() + text.size() || count < 1 || count > kMost) return std::nullopt;
    return count;
}

inline const jit::Setting kSegmentsVariable(
    {"GDN_SCAN_PIECES", "auto",
     "into how many segments selective_scan splits long sequences, forward and backward: auto, or 1 to 128"},
    "auto, or a number from 1 to 128", parse_segments);

}  // namespace gdn_cuda::scan
