// The path hook's answer, stored beside the cache for later processes: calling Python adds tens of milliseconds to a first call
// if it must import cuda-pathfinder; a few stat() calls show that the answer still holds.
#pragma once

#include <filesystem>

#include "toolchain.hpp"

namespace gdn_cuda::jit {

// The result of `hook()`, from the memo if an earlier process with the same identity wrote it and nothing was since added to or
// removed from the folders that the hook examines and those it returned. `memo`: a file; empty: none.
SearchPaths memoised_paths(const HookInputs& inputs, const std::filesystem::path& memo, const PathHook& hook);

}  // namespace gdn_cuda::jit
