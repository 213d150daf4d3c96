#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "fork.hpp"
#include "interrupt.hpp"
#include "log.hpp"
#include "store.hpp"
#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr std::string_view kHolder = "process ";  // a held lock file starts with this

int flock_retrying(int fd, int operation) {
    int result;
    do result = ::flock(fd, operation);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

std::string read_holder(int fd) {
    std::array<char, 256> text{};
    const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
    return got > 0 ? std::string(text.data()) : std::string("an unidentified process");
}

// We write to this file, so it must be a lock file: a regular file of ours or root's without hard links, empty or with a
// holder's text.
bool is_lock(int fd) {
    struct stat status {};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1 || !distrust_of(status).empty())
        return false;
    std::array<char, kHolder.size()> start;
    const ssize_t got = ::pread(fd, start.data(), start.size(), 0);  // empty while not held
    return got == 0 || (got == ssize_t{start.size()} && std::string_view(start.data(), start.size()) == kHolder);
}

// Negative if the file cannot be opened or is no lock file.
int open_lock(const std::filesystem::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) return -1;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0 || is_lock(fd)) return fd;
    ::close(fd);
    return -1;
}

void write_holder(int fd) {
    std::array<char, 128> host{};
    ::gethostname(host.data(), host.size() - 1);
    const std::string holder = fmt::format("{}{} on {}", kHolder, ::getpid(), host.data());
    // Only informs users who wait; a full disk may drop it.
    if (::ftruncate(fd, 0) == 0) [[maybe_unused]]
        const auto written = ::pwrite(fd, holder.data(), holder.size(), 0);
}

int acquire(int fd, const std::filesystem::path& path, std::chrono::milliseconds patience) {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    auto pause = std::chrono::milliseconds(1);
    bool said = false;
    int error;
    while ((error = flock_retrying(fd, LOCK_EX | LOCK_NB)) == EWOULDBLOCK) {
        if (!said && clock::now() - start >= patience) {
            log(Level::warning,
                fmt::format("waiting for {}, which compiles the same kernel ({})", read_holder(fd), path.string()));
            said = true;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::milliseconds(20));
        interruption_point();
    }
    return error;
}

// Descriptors that a forked child must close, since any copy keeps the lock; guarded by fork_lock().
struct Descriptors {
    std::map<int, std::string> keys;
    std::set<std::string> in_parent;  // compiles in progress in the parent at the fork

    Descriptors() {
        in_forked_child([this] {
            for (auto& [fd, key] : keys) {
                ::close(fd);
                in_parent.insert(std::move(key));
            }
            keys.clear();
        });
    }
};
auto& descriptors = *new Descriptors;

}  // namespace

KeyLock::KeyLock(const std::filesystem::path& directory, const std::string& key, std::chrono::milliseconds patience)
    : generation_(fork_generation()) {
    if (directory.empty() || !make_own_folder(directory / "locks").empty()) return;
    const std::filesystem::path path = directory / "locks" / (key + ".lock");
    {
        const auto lock = fork_lock();
        if (descriptors.in_parent.contains(key)) return;  // the parent's compile may take arbitrarily long
        fd_ = open_lock(path);
        if (fd_ < 0) return;
        descriptors.keys.emplace(fd_, key);
    }
    try {
        // ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL: no lock support. Two processes may compile the same; the rename settles it.
        if (acquire(fd_, path, patience) == 0)
            write_holder(fd_);
        else
            close();
    } catch (...) {
        close();
        throw;
    }
}

void KeyLock::close() {
    const auto lock = fork_lock();
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || generation_ != fork_generation()) return;  // already closed in a child, where the number may be reused
    descriptors.keys.erase(fd);
    ::close(fd);
}

KeyLock::~KeyLock() {
    if (fd_ >= 0 && generation_ == fork_generation()) {
        [[maybe_unused]] const int emptied = ::ftruncate(fd_, 0);
        ::flock(fd_, LOCK_UN);  // close() alone does not unlock while a child just forked has a copy
    }
    close();
}

}  // namespace gdn_cuda::jit
