#include "tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "draft.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "interrupt.hpp"
#include "key.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kHeader = "gdn_cuda memo 1";
static_assert(kHeader.size() < kMostMemoHeader);
// Of CUDA's and CUTLASS's headers the largest has some megabytes; a memo has a line for each.
constexpr std::uint64_t kMostBytes = 256 << 20;
constexpr std::size_t kDigestLength = 64;
// Times come from a clock that ticks every few milliseconds: a file this young may change again without its status showing it.
constexpr std::int64_t kSettled = 2'000'000'000;

std::int64_t nanoseconds(const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::int64_t now() {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    return nanoseconds(time);
}

// The change time cannot be set back by anyone, so an edit that restores size and modification time shows all the same.
struct Stamp {
    std::uint64_t size = 0, inode = 0;
    std::int64_t modified = 0, changed = 0;

    static Stamp of(const struct stat& status) {
        return {static_cast<std::uint64_t>(status.st_size), status.st_ino, nanoseconds(status.st_mtim),
                nanoseconds(status.st_ctim)};
    }
    bool settled(std::int64_t at) const { return changed < at - kSettled; }
    bool operator==(const Stamp&) const = default;
};

struct FileFound {
    std::string name;  // relative to the root
    Stamp stamp;
};

class Walk {
  public:
    Walk(const fs::path& root, const FolderFilter& enter) : root_(root), enter_(enter) {
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
        if (std::find(above_.begin(), above_.end(), identity) != above_.end()) return;  // a link to a folder around it
        above_.push_back(identity);
        while (const dirent* entry = ::readdir(entries.get())) visit(fd, prefix, entry->d_name);
        above_.pop_back();
    }

    void visit(int fd, const std::string& prefix, std::string_view name) {
        if (name.front() == '.' || name.back() == '~') return;
        struct stat status {};
        if (::fstatat(fd, name.data(), &status, 0) != 0)
            return;  // gone meanwhile, or a link to nothing: it cannot be included either
        std::string relative = prefix + std::string(name);
        if (S_ISREG(status.st_mode)) {
            files.push_back({std::move(relative), Stamp::of(status)});
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

// One line a file: digest, stamp, name; the first line is the header, the last the digest of all before it.
struct Memo {
    struct Line {
        std::string digest;
        Stamp stamp;
        bool operator==(const Line&) const = default;
    };
    std::map<std::string, Line, std::less<>> lines;

    std::string text() const {
        std::string out(kHeader);
        out += '\n';
        for (const auto& [name, line] : lines)
            fmt::format_to(std::back_inserter(out), "{} {} {} {} {} {}\n", line.digest, line.stamp.size, line.stamp.inode,
                           line.stamp.modified, line.stamp.changed, name);
        return out + sha256_hex(out) + "\n";
    }

    // Nothing of a memo that is not wholly as it was written.
    static Memo parse(std::string_view text) {
        Memo memo;
        if (text.size() < kHeader.size() + 1 + kDigestLength + 1 || !text.starts_with(kHeader)) return memo;
        const std::string_view body = text.substr(0, text.size() - kDigestLength - 1);
        if (text.substr(body.size(), kDigestLength) != sha256_hex(body) || text.back() != '\n') return memo;
        std::string_view rest = body.substr(kHeader.size() + 1);
        while (!rest.empty()) {
            const std::size_t end = rest.find('\n');
            if (end == std::string_view::npos || !memo.parse_line(rest.substr(0, end))) return {};
            rest.remove_prefix(end + 1);
        }
        return memo;
    }

    bool parse_line(std::string_view line) {
        if (line.size() < kDigestLength + 1) return false;
        Line value{std::string(line.substr(0, kDigestLength)), {}};
        line.remove_prefix(kDigestLength + 1);
        const auto number = [&line](auto& field) {
            const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), field);
            if (error != std::errc{} || end == line.data() + line.size() || *end != ' ') return false;
            line.remove_prefix(static_cast<std::size_t>(end - line.data()) + 1);
            return true;
        };
        if (!number(value.stamp.size) || !number(value.stamp.inode) || !number(value.stamp.modified) ||
            !number(value.stamp.changed))
            return false;
        lines.insert_or_assign(std::string(line), std::move(value));
        return true;
    }
};

Memo read_memo(const fs::path& path) {
    if (path.empty()) return {};
    const auto text = read_own(path, kMostBytes);
    return text ? Memo::parse(*text) : Memo{};
}

void write_memo(const fs::path& path, const Memo& memo) {
    if (path.empty()) return;
    // Without it the next process reads the files again: slower, never wrong.
    if (make_own_folder(path.parent_path()).empty()) write_atomically(path, memo.text(), 0600);
}

std::string file_digest(const fs::path& path) {
    std::string why_not;
    interruption_point();  // a tree of thousands, perhaps on a slow file system
    const auto bytes = read_file(path, kMostBytes, &why_not);
    if (!bytes) throw Error(fmt::format("header {}: expected a readable file, got: {}", path.string(), why_not));
    return sha256_hex(*bytes);
}

}  // namespace

bool is_memo(std::string_view start) {
    return start.size() > kHeader.size() && start.starts_with(kHeader) &&
           (start[kHeader.size()] == '\n' || start[kHeader.size()] == ' ');  // ' ' and of what, where it is not of a tree
}

std::string tree_digest(const fs::path& root, const fs::path& memo, const FolderFilter& enter) {
    const std::int64_t started = now();
    const Walk walk(root, enter);
    const Memo known = read_memo(memo);
    Memo fresh;
    bool changed = known.lines.size() != walk.files.size();
    KeyBuilder digest;
    for (const FileFound& file : walk.files) {
        const auto line = known.lines.find(file.name);
        const bool same = line != known.lines.end() && line->second.stamp == file.stamp;
        const std::string content = same ? line->second.digest : file_digest(root / file.name);
        changed = changed || !same;
        if (same || file.stamp.settled(started)) fresh.lines.emplace(file.name, Memo::Line{content, file.stamp});
        digest.add(file.name, content);
    }
    if (changed && fresh.lines != known.lines) write_memo(memo, fresh);
    return digest.hex();
}

std::string memoised(const fs::path& file, const fs::path& memo, const std::function<std::string()>& compute) {
    struct stat status {};
    const bool exists = ::stat(file.c_str(), &status) == 0;
    const Stamp stamp = Stamp::of(status);
    const Memo known = read_memo(memo);
    if (exists && known.lines.size() == 1 && known.lines.begin()->second.stamp == stamp) return known.lines.begin()->first;
    std::string value = compute();
    const bool one_line = !value.empty() && value.find('\n') == std::string::npos;
    if (exists && one_line && stamp.settled(now())) {
        Memo fresh;
        fresh.lines.emplace(value, Memo::Line{std::string(kDigestLength, '0'), stamp});
        write_memo(memo, fresh);
    }
    return value;
}

}  // namespace gdn_cuda::jit
