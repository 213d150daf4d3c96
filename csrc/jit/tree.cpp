#include "tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "file_memo.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "key.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

// The largest of CUDA's and CUTLASS's headers have a few MB.
constexpr std::uint64_t kLargestHeader = 256 << 20;

struct FileFound {
    std::string name;  // relative to the root
    FileStamp stamp;
};

// All files below a header folder, sorted by name.
class HeaderFiles {
  public:
    HeaderFiles(const fs::path& root, const FolderFilter& enter) : root_(root), enter_(enter) {
        const int fd = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            throw Error(fmt::format("header folder {}: expected a readable folder, got: {}", root.string(), errno_text(errno)));
        folder(fd, "");
        std::sort(files.begin(), files.end(), [](const FileFound& a, const FileFound& b) { return a.name < b.name; });
    }

    std::vector<FileFound> files;

  private:
    using Identity = std::pair<dev_t, ino_t>;

    void folder(int fd, const std::string& prefix) {
        struct stat self {};
        const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(fd), ::closedir);
        if (!entries) {
            const int error = errno;
            ::close(fd);
            throw Error(fmt::format("header folder {}/{}: {}", root_.string(), prefix, errno_text(error)));
        }
        ::fstat(fd, &self);
        const Identity identity{self.st_dev, self.st_ino};
        if (std::find(above_.begin(), above_.end(), identity) != above_.end()) return;  // a symlink to a parent folder
        above_.push_back(identity);
        while (const dirent* entry = ::readdir(entries.get())) visit(fd, prefix, entry->d_name);
        above_.pop_back();
    }

    void visit(int fd, const std::string& prefix, std::string_view name) {
        if (name.front() == '.' || name.back() == '~') return;
        struct stat status {};
        if (::fstatat(fd, name.data(), &status, 0) != 0)
            return;  // removed meanwhile, or a dangling symlink: not includable either
        std::string relative = prefix + std::string(name);
        if (S_ISREG(status.st_mode)) {
            files.push_back({std::move(relative), FileStamp::of(status)});
        } else if (S_ISDIR(status.st_mode) && (!enter_ || enter_(relative))) {
            const int below = ::openat(fd, name.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (below < 0) throw Error(fmt::format("header folder {}/{}: {}", root_.string(), relative, errno_text(errno)));
            folder(below, relative + "/");
        }
    }

    fs::path root_;
    const FolderFilter& enter_;
    std::vector<Identity> above_;
};

}  // namespace

std::string read_header(const fs::path& path) {
    std::string why_not;
    interruption_point();  // thousands of files, perhaps on a slow file system
    auto bytes = read_file(path, kLargestHeader, &why_not);
    if (!bytes) throw Error(fmt::format("header {}: expected a readable file, got: {}", path.string(), why_not));
    return std::move(*bytes);
}

std::string tree_digest(const fs::path& root, const fs::path& memo, const FolderFilter& enter) {
    const std::int64_t started = nanoseconds_now();
    const HeaderFiles found(root, enter);
    const FileMemo known = FileMemo::read(memo);
    FileMemo fresh;
    bool changed = known.entries.size() != found.files.size();
    KeyBuilder digest;
    for (const FileFound& file : found.files) {
        const std::string* same = known.find(file.name, file.stamp);
        const std::string content = same != nullptr ? *same : sha256_hex(read_header(root / file.name));
        changed = changed || same == nullptr;
        if (same != nullptr || file.stamp.settled(started))
            fresh.entries.emplace(file.name, FileMemo::Entry{file.stamp, content});
        digest.add(file.name, content);
    }
    if (changed && fresh.entries != known.entries) fresh.write(memo);
    return digest.hex();
}

}  // namespace gdn_cuda::jit
