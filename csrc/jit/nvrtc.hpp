// Which NVRTC a folder holds, told from its files: opening the library costs 85 ms, which a cache hit does not pay.
#pragma once

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

std::filesystem::path newest_nvrtc(const std::filesystem::path& folder);  // libnvrtc.so.NN; empty when there is none
std::filesystem::path builtins_beside(
    const std::filesystem::path& nvrtc);                            // libnvrtc-builtins.so.NN.M of the same major; or empty
std::string expected_builtins(const std::filesystem::path& nvrtc);  // "libnvrtc-builtins.so.13.*", for people

}  // namespace gdn_cuda::jit
