// Environment variables of the family.
#pragma once

#include <string>

#include "../../jit/env.hpp"

namespace gdn_cuda::scan {

inline const jit::Setting kSegmentsVariable(
    {"GDN_SCAN_PIECES", "auto",
     "into how many segments selective_scan splits long sequences, forward and backward: auto, or 1 to 128"},
    "auto, or a number from 1 to 128", [](const std::string& text) { return jit::auto_or_number(text, 128); });

inline const jit::Setting kTurnsVariable({"GDN_SCAN_TURNS", "auto",
                                          "into how many segments, taken in turn by blocks that more than fill the GPU, "
                                          "selective_scan splits sequences: auto, or 1 to 128"},
                                         "auto, or a number from 1 to 128",
                                         [](const std::string& text) { return jit::auto_or_number(text, 128); });

}  // namespace gdn_cuda::scan
