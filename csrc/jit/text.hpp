// fmt from torch's bundled headers; compiled in text.cpp. While this macro is defined, torch's headers outside the stable ABI
// do not compile; fmt has no ABI to protect.
#pragma once

#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <fmt/format.h>
#include <fmt/ranges.h>
#pragma pop_macro("TORCH_TARGET_VERSION")
