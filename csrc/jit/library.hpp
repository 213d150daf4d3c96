// Where this library was loaded from, and whether files that came with it are as trustworthy as itself.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

// libgdn_cuda.so, or the program it is linked into, by the path that it was loaded from: package managers may keep files under
// other names in one folder and link to them, so what is beside the link need not be beside its target. Empty if unknown.
std::filesystem::path this_library();

// For a result of stat: empty if nobody can write the file who could not change this library, whose code runs already.
std::string distrust_of_installed(const struct stat& status);

}  // namespace gdn_cuda::jit
