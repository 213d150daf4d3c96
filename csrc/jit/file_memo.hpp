// What was computed of files, kept by their status from process to process, so that a warm one reads none that did not change.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

// The change time cannot be set back by anyone, so an edit that restores size and modification time shows all the same.
struct FileStamp {
    std::uint64_t size = 0, inode = 0;
    std::int64_t modified = 0, changed = 0;  // nanoseconds since 1970

    static FileStamp of(const struct stat& status);
    bool settled(std::int64_t at) const;  // false: the file is so young that it may change again without its status showing it
    bool operator==(const FileStamp&) const = default;
};

std::int64_t nanoseconds_now();

class FileMemo {
  public:
    struct Entry {
        FileStamp stamp;
        std::string value;
        bool operator==(const Entry&) const = default;
    };
    std::map<std::string, Entry, std::less<>> entries;  // by the files' names

    static FileMemo read(const std::filesystem::path& path);  // empty for one that is not wholly as it was written
    void write(const std::filesystem::path& path) const;

    // What is remembered of a file that looks like this; null when it is another one now.
    const std::string* find(std::string_view name, const FileStamp& stamp) const;

  private:
    std::string text() const;
    bool parse_entry(std::string_view& rest);
};

// Whether a file with these first bytes is such a memo, of this format or an older one. `kMostMemoHeader` of them decide.
bool is_memo(std::string_view start);
constexpr std::size_t kMostMemoHeader = 16;

// `compute()`, or what it gave when `file` last had the size, times and inode it has now.
std::string memoised(const std::filesystem::path& file, const std::filesystem::path& memo,
                     const std::function<std::string()>& compute);

}  // namespace gdn_cuda::jit
