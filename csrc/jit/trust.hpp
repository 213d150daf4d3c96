// Whether anyone but us and root could replace what is at a path. The owner of "/" counts as root: they can replace any path.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

enum class Owner { us, us_or_root };

// Empty if nobody else can write into the folder, or rename it or one of its parents; else the reason. Symlinks on the way are
// checked too, since whoever can replace one chooses the folder. `folder` is absolute.
std::string distrust_of_folder(const std::filesystem::path& folder, Owner owner);
// The same for the existing parents of `path`, so it can be called before `path` is created.
std::string distrust_of_parents(const std::filesystem::path& path);

// For a result of fstat or lstat: empty if we or root own it and nobody else can write it.
std::string distrust_of(const struct stat& status);

}  // namespace gdn_cuda::jit
