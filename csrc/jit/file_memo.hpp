// Results computed from files, stored on disk with each file's stat() data so that a warm process reads only changed files.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

// Includes ctime, which nobody can set back: an edit that restores size and mtime is still noticed.
struct FileStamp {
    std::uint64_t size = 0, inode = 0;
    std::int64_t modified = 0, changed = 0;  // nanoseconds since 1970

    static FileStamp of(const struct stat& status);
    bool settled(std::int64_t at) const;  // false: so recent that another change may leave the same times
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
    std::map<std::string, Entry, std::less<>> entries;  // by file name

    static FileMemo read(const std::filesystem::path& path);  // empty if it is damaged
    void write(const std::filesystem::path& path) const;

    // The value stored for this name with the same stamp, else null.
    const std::string* find(std::string_view name, const FileStamp& stamp) const;

  private:
    std::string text() const;
    bool parse_entry(std::string_view& rest);
};

// Whether a file that starts with these bytes is a memo, in this format or an older one; `kMostMemoHeader` bytes suffice.
bool is_memo(std::string_view start);
constexpr std::size_t kMostMemoHeader = 16;

// The result of `compute()`, from the memo if `file` still has the recorded size, times and inode.
std::string memoised(const std::filesystem::path& file, const std::filesystem::path& memo,
                     const std::function<std::string()>& compute);

}  // namespace gdn_cuda::jit
