// The headers of CUDA, CUTLASS and libcu++ that a translation unit can include, directly or transitively, and one digest of
// them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "file_memo.hpp"
#include "includes.hpp"

namespace gdn_cuda::jit {

// Looks at each file once in its lifetime.
class ExternalHeaders {
  public:
    explicit ExternalHeaders(std::vector<std::filesystem::path> folders);  // in the order in which compilers search them

    // Digest of names and contents; empty if an include cannot be determined. `memo` (a file; empty: none) keeps the result
    // with the status of every file read and of every place searched in vain, so that a warm process reads none of them.
    std::string digest(const std::vector<Include>& includes, const std::filesystem::path& memo);

  private:
    struct File {
        std::string digest;
        Includes includes;
        Macros macros;
    };
    class Closure;

    FileStamp stamp(const std::string& path);  // all zero: no file there
    const File& read(const std::string& path);
    std::string canonical(const std::string& folder);
    bool still(const FileMemo& memo);

    const std::vector<std::string> folders_;
    const std::int64_t started_;
    std::unordered_map<std::string, FileStamp> stamps_;
    std::unordered_map<std::string, File> files_;
    std::unordered_map<std::string, std::string> canonical_;
};

}  // namespace gdn_cuda::jit
