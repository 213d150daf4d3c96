#include "trust.hpp"

#include <unistd.h>

#include <cerrno>
#include <deque>
#include <system_error>

#include "files.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;
constexpr int kMostLinks = 40;  // the Linux limit

bool is_us_or_root(uid_t owner) {
    struct stat top {};
    return owner == ::geteuid() || owner == 0 || (::stat("/", &top) == 0 && owner == top.st_uid);
}

// For a folder that contains one of ours. In a sticky folder (such as /tmp) only owners may rename.
std::string distrust_of_parent(const fs::path& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0) return fmt::format("{}: {}", folder.string(), errno_text(errno));
    if (!is_us_or_root(status.st_uid))
        return fmt::format("{} belongs to user {}, who may rename what is in it", folder.string(), status.st_uid);
    if ((status.st_mode & kOthersMayWrite) != 0 && (status.st_mode & S_ISVTX) == 0)
        return fmt::format("others may rename what is in {} (mode {:04o}); chmod go-w or chmod +t makes it usable",
                           folder.string(), status.st_mode & 07777);
    return {};
}

// Resolves a path from "/", one name at a time, as Linux does.
class ResolvedPath {
  public:
    explicit ResolvedPath(const fs::path& path) : rest_(path.begin(), path.end()) { reason_ = follow(); }

    const std::string& reason() const { return reason_; }
    bool complete() const { return rest_.empty(); }    // false: the rest does not exist
    const fs::path& reached() const { return here_; }  // free of symlinks

  private:
    std::string follow() {
        while (!rest_.empty()) {
            const fs::path name = rest_.front();
            if (name.empty() || name == "." || name == "/" || name == "..") {
                if (name == "/") here_ = "/";
                if (name == "..") here_ = here_.parent_path();
                rest_.pop_front();
                continue;
            }
            if (std::string reason = distrust_of_parent(here_); !reason.empty()) return reason;
            const fs::path next = here_ / name;
            struct stat status {};
            if (::lstat(next.c_str(), &status) != 0)
                return errno == ENOENT ? std::string{} : fmt::format("{}: {}", next.string(), errno_text(errno));
            rest_.pop_front();
            if (!S_ISLNK(status.st_mode)) {
                here_ = next;
            } else if (std::string reason = follow_link(next, status.st_uid); !reason.empty()) {
                return reason;
            }
        }
        return {};
    }

    std::string follow_link(const fs::path& link, uid_t owner) {
        if (!is_us_or_root(owner)) return fmt::format("the link {} belongs to user {}", link.string(), owner);
        std::error_code error;
        const fs::path target = fs::read_symlink(link, error);
        if (error) return fmt::format("{}: {}", link.string(), error.message());
        if (++links_ > kMostLinks) return fmt::format("{}: {}", link.string(), errno_text(ELOOP));
        rest_.insert(rest_.begin(), target.begin(), target.end());
        return {};
    }

    std::deque<fs::path> rest_;
    fs::path here_ = "/";
    int links_ = 0;
    std::string reason_;
};

}  // namespace

std::string distrust_of(const struct stat& status) {
    if (!is_us_or_root(status.st_uid)) return fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid());
    if ((status.st_mode & kOthersMayWrite) != 0)
        return fmt::format("others may write it (mode {:04o}); chmod go-w makes it usable", status.st_mode & 07777);
    return {};
}

std::string distrust_of_folder(const fs::path& folder, Owner owner) {
    const ResolvedPath resolved(folder);
    if (!resolved.reason().empty()) return resolved.reason();
    struct stat status {};
    if (!resolved.complete() || ::stat(resolved.reached().c_str(), &status) != 0) return errno_text(ENOENT);
    if (!S_ISDIR(status.st_mode)) return "not a folder";
    if (owner == Owner::us && status.st_uid != ::geteuid())
        return fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid());
    return distrust_of(status);
}

std::string distrust_of_parents(const fs::path& path) {
    const ResolvedPath resolved(path.parent_path());
    if (!resolved.reason().empty() || !resolved.complete()) return resolved.reason();
    return distrust_of_parent(resolved.reached());
}

}  // namespace gdn_cuda::jit
