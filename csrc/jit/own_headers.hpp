// The headers of this library that a translation unit can include, directly or transitively, and digests of their contents.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "file_memo.hpp"
#include "includes.hpp"

namespace gdn_cuda::jit {

struct Header {
    std::string name;    // relative to the include folder
    std::string digest;  // of its contents; "missing" if no such file exists yet
};

struct HeaderSet {
    std::vector<Header> headers;    // in order of first mention
    std::vector<Include> external;  // what these and the code include beside them, sorted (external_headers.hpp)
    bool unclear = false;           // either list may be incomplete (includes.hpp)
};

// Examines each file once in its lifetime, and reads only those changed since `memo` (a file; empty: none) was written.
class OwnHeaders {
  public:
    OwnHeaders(std::filesystem::path include_folder, std::filesystem::path memo);

    // Follows <gdn_cuda/...>, and "..." beside the including header.
    HeaderSet of(std::string_view code);

  private:
    struct File {
        std::string path, folder;  // `folder`: that of `path`, symlinks resolved, since compilers resolve ".." from there
        std::string digest;        // empty: no such file
        Includes includes;
    };
    const File& file(const std::filesystem::path& path);
    std::string canonical(const std::string& folder);
    void read(File& file);
    void write_memo();

    const std::filesystem::path include_folder_, memo_path_;
    const std::int64_t started_;
    FileMemo memo_;
    bool learned_ = false;  // memo_ has changes to write
    std::map<std::string, std::string> folders_;
    std::map<std::string, File> files_;
};

}  // namespace gdn_cuda::jit
