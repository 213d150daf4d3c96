// Digests of header trees, memoised by stat() data (file_memo.hpp).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

// Whether to descend into a folder, given its name relative to the root.
using FolderFilter = std::function<bool(std::string_view)>;

// Digest of a header tree's relative names and contents, without times. Reads only files whose size, times or inode changed
// since `memo` (a file; empty: none) was written. Names that start with a dot or end in ~ (editor files) are skipped.
std::string tree_digest(const std::filesystem::path& root, const std::filesystem::path& memo, const FolderFilter& enter = {});

// The contents of a header; it must be a regular file.
std::string read_header(const std::filesystem::path& path);

}  // namespace gdn_cuda::jit
