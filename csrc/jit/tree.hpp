// Digests of headers on disk, memoised by file status (file_memo.hpp).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

// Says whether to go into a folder, by its name relative to the root.
using FolderFilter = std::function<bool(std::string_view)>;

// Content digest of a header tree: relative names and bytes, no times. Reads only files whose size, times or inode changed
// since `memo` (a file; empty: none) was written. Names that start with a dot or end in ~ (editors' files) do not count.
std::string tree_digest(const std::filesystem::path& root, const std::filesystem::path& memo, const FolderFilter& enter = {});

// The bytes of a header, which must be a regular file.
std::string read_header(const std::filesystem::path& path);

}  // namespace gdn_cuda::jit
