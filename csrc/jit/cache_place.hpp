// Which folder the cache lives in; Store::instance() is what writes there.
#pragma once

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

// The first of the cache's places that has this folder and that others can neither own nor write; empty when none has. Unlike
// opening the cache, it makes nothing and needs no permission to write.
std::filesystem::path first_place_with(const std::string& folder);

}  // namespace gdn_cuda::jit
