// Which folders the cache lives in: the first usable of GDN_JIT_CACHE_DIR, XDG_CACHE_HOME/gdn_cuda, HOME/.cache/gdn_cuda and
// <tmp>/gdn_cuda-<uid>. A place that others could replace is never used. None usable: memory only. One warning says why a
// better place was passed over.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "store.hpp"

namespace gdn_cuda::jit {

// The chain of places above, told apart so that it can be tested: nothing is remembered, nothing is logged.
Store open_first_usable();

// An entry of the place that is written, else of a better one that can be read but not written.
std::optional<Cubin> find_cached(const std::string& name, const std::string& key);
// Publishes in the place that is written. When its disk is full or read-only, in the next usable one, which is written from
// then on. False: in none, so the caller keeps it in memory. One warning either way.
bool keep_cached(const std::string& name, const std::string& key, const Cubin& cubin);

// The first of the cache's places that has this folder and that others can neither own nor write; empty when none has. Unlike
// opening the cache, it makes nothing and needs no permission to write.
std::filesystem::path first_place_with(const std::string& folder);

// Why GDN_JIT_PREBUILT_DIR is not read; empty when it is, or is not set.
std::string distrust_of_prebuilt();

}  // namespace gdn_cuda::jit
