#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "log.hpp"
#include "store.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

int flock_retrying(int fd, int operation) {
    int result;
    do result = ::flock(fd, operation);
    while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
}

std::string read_holder(int fd) {
    std::array<char, 256> text{};
    const ssize_t got = ::pread(fd, text.data(), text.size() - 1, 0);
    return got > 0 ? std::string(text.data()) : std::string("a process that did not say its name");
}

void write_holder(int fd) {
    std::array<char, 128> host{};
    ::gethostname(host.data(), host.size() - 1);
    const std::string holder = fmt::format("process {} on {}", ::getpid(), host.data());
    // Only for people who wait; on a full disk they learn less.
    if (::ftruncate(fd, 0) == 0) [[maybe_unused]]
        const auto written = ::pwrite(fd, holder.data(), holder.size(), 0);
}

}  // namespace

KeyLock::KeyLock(const std::filesystem::path& directory, const std::string& key, std::chrono::milliseconds patience) {
    using clock = std::chrono::steady_clock;
    if (directory.empty() || !make_directories(directory / "locks", 0700).empty()) return;
    const std::filesystem::path path = directory / "locks" / (key + ".lock");
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0) return;

    const auto start = clock::now();
    auto pause = std::chrono::milliseconds(1);
    int error;
    while ((error = flock_retrying(fd_, LOCK_EX | LOCK_NB)) == EWOULDBLOCK) {
        if (clock::now() - start >= patience) {
            log(Level::warning,
                fmt::format("waiting for {}, which compiles the same kernel ({})", read_holder(fd_), path.string()));
            error = flock_retrying(fd_, LOCK_EX);
            break;
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::milliseconds(20));
    }
    if (error != 0) {  // ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL: no locks here, so two may compile the same; the rename settles it
        ::close(fd_);
        fd_ = -1;
        return;
    }
    write_holder(fd_);
}

KeyLock::~KeyLock() {
    if (fd_ < 0) return;
    [[maybe_unused]] const int emptied = ::ftruncate(fd_, 0);
    ::flock(fd_, LOCK_UN);  // a child forked meanwhile holds the descriptor too, so closing alone would not free it
    ::close(fd_);
}

}  // namespace gdn_cuda::jit
