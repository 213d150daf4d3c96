// Which NVRTC a folder holds, told from its files: opening the library costs 85 ms, which a cache hit does not pay.
#pragma once

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

std::filesystem::path newest_nvrtc(const std::filesystem::path& folder);  // libnvrtc.so.NN; empty when there is none
std::filesystem::path builtins_beside(
    const std::filesystem::path& nvrtc);                            // libnvrtc-builtins.so.NN.M of the same major; or empty
std::string expected_builtins(const std::filesystem::path& nvrtc);  // "libnvrtc-builtins.so.13.*", for people

// How many threads compile with it now, those whose callers were interrupted among them. exit() takes NVRTC apart, which they
// would not survive, so it must not be called before this is 0.
int inside_nvrtc();

}  // namespace gdn_cuda::jit
