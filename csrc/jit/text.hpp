// fmt, as torch bundles it; text.cpp compiles it. Torch guards all its headers outside the stable ABI by this macro; fmt has no
// ABI to guard.
#pragma once

#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <fmt/format.h>
#include <fmt/ranges.h>
#pragma pop_macro("TORCH_TARGET_VERSION")
