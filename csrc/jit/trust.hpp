// Who, beside us and root, could replace what lies at a path. Root's rights are those of whoever owns "/", too: they can
// replace every path there is.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

enum class Owner { us, us_or_root };

// Empty when nobody else can write into the folder, nor rename it or a folder above it; else the reason. A link on the way
// counts as well: whoever can replace it chooses the folder. `folder` is absolute.
std::string distrust_of_folder(const std::filesystem::path& folder, Owner owner);
// The same for the folders above `path` as far as they exist, so that it can be asked before `path` is made.
std::string distrust_of_parents(const std::filesystem::path& path);

// Of what fstat or lstat said: empty for a folder, or a file, of ours or root's that nobody else can write.
std::string distrust_of(const struct stat& status);

}  // namespace gdn_cuda::jit
