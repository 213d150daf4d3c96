// What the path hook answered, kept beside the cache for later processes: asking Python costs a first call tens of milliseconds
// where it has to import cuda-pathfinder, and a few calls of stat() tell that the answer is the same.
#pragma once

#include <filesystem>

#include "toolchain.hpp"

namespace gdn_cuda::jit {

// `hook()`, or what it gave an earlier process with the same identity, when nothing was added to or removed from the folders
// that it looks at and those that it named since. `memo`: a file; empty: none.
SearchPaths remembered_paths(const HookInputs& inputs, const std::filesystem::path& memo, const PathHook& hook);

}  // namespace gdn_cuda::jit
