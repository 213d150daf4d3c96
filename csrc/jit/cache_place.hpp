// The cache's folders: the first usable of GDN_JIT_CACHE_DIR, XDG_CACHE_HOME/gdn_cuda, HOME/.cache/gdn_cuda and
// <tmp>/gdn_cuda-<uid>. A folder that other users could replace is never used. If none is usable, the cache is memory only. One
// warning says why a better folder was skipped.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "store.hpp"

namespace gdn_cuda::jit {

// Opens the first usable of the folders above. It keeps and logs nothing, so tests can call it.
Store open_first_usable();

// Looks in the folder in use, then in the preferred ones that can be read but not written.
std::optional<Cubin> find_cached(const std::string& name, const std::string& key);
// Publishes in the folder in use. If its disk is full or read-only, switches to the next usable folder for the rest of the
// process. False: none took it, and the caller keeps the cubin in memory. Logs one warning either way.
bool keep_cached(const std::string& name, const std::string& key, const Cubin& cubin);

// The first cache folder that contains the subfolder `folder`, which no other user may own or write; empty if none does. Unlike
// opening the cache, this creates nothing and needs no write permission.
std::filesystem::path first_place_with(const std::string& folder);

}  // namespace gdn_cuda::jit
