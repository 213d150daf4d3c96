// Finds NVRTC in a folder by file names alone: opening the library costs 85 ms, which a cache hit must not pay.
#pragma once

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

std::filesystem::path newest_nvrtc(const std::filesystem::path& folder);  // libnvrtc.so.NN; empty if none
std::filesystem::path builtins_beside(
    const std::filesystem::path& nvrtc);  // libnvrtc-builtins.so.NN.M of the same major version; empty if none
std::string expected_builtins(const std::filesystem::path& nvrtc);  // "libnvrtc-builtins.so.13.*", for messages

// The number of threads inside NVRTC, including those whose callers were interrupted. Do not call exit() before it is 0: exit()
// destroys NVRTC's state under them.
int inside_nvrtc();
// From now on, threads that nobody waits for (run_in_background) do not enter it.
void keep_background_out_of_nvrtc();
// From now on, a thread that is about to enter NVRTC calls `ask` first, and enters when that returns.
void call_before_nvrtc(void (*ask)());

}  // namespace gdn_cuda::jit
