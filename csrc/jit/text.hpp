// fmt, header-only, as torch bundles it. Torch guards all its headers outside the stable ABI by this macro; fmt has no ABI to
// guard.
#pragma once

#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>
#include <fmt/ranges.h>
#pragma pop_macro("TORCH_TARGET_VERSION")
