// Which headers of ours a translation unit can include, directly and through each other, and what they hold.
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
    std::string digest;  // of its contents; "missing" of a file that would be included if it were there
};

struct HeaderSet {
    std::vector<Header> headers;  // in the order of their first mention
    bool unclear = false;         // there may be others (includes.hpp)
};

// Looks at each file once while it lives, and reads only those that changed since `memo` (a file; empty: none) was written.
class OwnHeaders {
  public:
    OwnHeaders(std::filesystem::path include_folder, std::filesystem::path memo);

    // Of <gdn_cuda/...> and of "..." beside the including header. CUDA's and CUTLASS's count as a whole, elsewhere.
    HeaderSet of(std::string_view code);

  private:
    struct File {
        std::string path, folder;  // `folder`: of `path`, without links, as the compilers go up from it
        std::string digest;        // empty: no file is there
        Includes includes;
    };
    const File& file(const std::filesystem::path& path);
    std::string canonical(const std::string& folder);
    void read(File& file);
    void write_memo();

    const std::filesystem::path include_folder_, memo_path_;
    const std::int64_t started_;
    FileMemo memo_;
    bool learned_ = false;  // what the memo on disk does not have
    std::map<std::string, std::string> folders_;
    std::map<std::string, File> files_;
};

}  // namespace gdn_cuda::jit
