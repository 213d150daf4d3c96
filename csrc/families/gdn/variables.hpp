// Environment variables of the family.
#pragma once

#include <iterator>
#include <optional>
#include <string>

#include "../../jit/env.hpp"
#include "../common/wanted_switch.hpp"
#include "kda_backward_segments.hpp"

namespace gdn_cuda::gdn {

enum class WantedPrefill { automatic, mma, recurrent };
inline constexpr const char* kWantedPrefills[] = {"auto", "mma", "recurrent"};  // in the order of WantedPrefill

inline const char* name_of(WantedPrefill wanted) {
    return kWantedPrefills[static_cast<int>(wanted)];
}

inline std::optional<int> parse_wanted_prefill(const std::string& text) {
    for (int i = 0; i < static_cast<int>(std::size(kWantedPrefills)); ++i)
        if (text == kWantedPrefills[i]) return i;
    return std::nullopt;
}

inline const jit::Setting kPrefillVariable({"GDN_PREFILL", "auto",
                                            "the kernel of chunked_forward where it can run: auto, mma or recurrent"},
                                           "auto, mma or recurrent", parse_wanted_prefill);

inline WantedPrefill wanted_prefill() {
    return static_cast<WantedPrefill>(kPrefillVariable.value());
}

inline constexpr int kMostKdaWindow = 1 << 20;
inline const jit::Setting kKdaWindowVariable({"GDN_KDA_WINDOW", "auto",
                                              "how many chunks of every head chunked_forward prepares at a time, where every "
                                              "channel of the key has a gate: auto, or a number"},
                                             "auto, or a number from 1 to 1048576",
                                             [](const std::string& text) { return jit::auto_or_number(text, kMostKdaWindow); });
inline const jit::Setting kKdaSegmentsVariable(
    {"GDN_KDA_SEGMENTS", "auto",
     "into how many segments chunked_forward splits a sequence of average length, where every channel of the key has a gate: "
     "auto, or 1 to 256"},
    "auto, or a number from 1 to 256", [](const std::string& text) { return jit::auto_or_number(text, 256); });

inline const jit::Setting kKdaAheadVariable({"GDN_KDA_AHEAD", "auto",
                                             "whether chunked_forward prepares chunks and applies them in one launch, where "
                                             "every channel of the key has a gate: auto, 0 or 1"},
                                            "auto, 0 or 1", parse_wanted_switch);

inline const jit::Setting kKdaBackwardSegmentsVariable({"GDN_KDA_BACKWARD_SEGMENTS", "auto",
                                                        "into how many segments the backward of chunked_forward splits "
                                                        "sequences, where every channel of the key has a gate: auto, "
                                                        "or 1 to 128"},
                                                       "auto, or a number from 1 to 128", [](const std::string& text) {
                                                           return jit::auto_or_number(text, kMostKdaBackwardSegments);
                                                       });

}  // namespace gdn_cuda::gdn
