// Digests of what lies on disk, memoised by file status, so that a warm process only asks for the status of files.
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

// Whether a file with these first bytes is such a memo. `kMostMemoHeader` of them decide.
bool is_memo(std::string_view start);
constexpr std::size_t kMostMemoHeader = 16;

// `compute()`, or what it gave when `file` last had the size, times and inode it has now.
std::string memoised(const std::filesystem::path& file, const std::filesystem::path& memo,
                     const std::function<std::string()>& compute);

}  // namespace gdn_cuda::jit
