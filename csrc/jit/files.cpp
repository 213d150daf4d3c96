#include "files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "library.hpp"
#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

// Empty for a regular file within the size limit.
std::string status_problem(const struct stat& status, std::uint64_t most_bytes) {
    if (S_ISLNK(status.st_mode)) return "it is a link";
    if (!S_ISREG(status.st_mode)) return "it is not a regular file";
    const auto size = static_cast<std::uint64_t>(status.st_size);
    return size > most_bytes ? fmt::format("it has {} bytes, more than the {} allowed", size, most_bytes) : std::string{};
}

enum class Writers { any, library, us };  // who may write the file

Descriptor open_checked(const fs::path& path, Writers writers, std::uint64_t most_bytes, std::string* why_not) {
    const bool own = writers == Writers::us;
    const auto refuse = [why_not](std::string reason) {
        if (why_not != nullptr) *why_not = std::move(reason);
        return Descriptor();
    };
    const auto refuse_error = [&](int error) {
        if (writers == Writers::any) return refuse(errno_text(error));
        return error == ENOENT ? Descriptor() : refuse(fmt::format("cannot be read: {}", errno_text(error)));
    };
    // Checked before opening too: opening a FIFO's read end unblocks its writer, whose data would be lost.
    struct stat status {};
    if ((own ? ::lstat(path.c_str(), &status) : ::stat(path.c_str(), &status)) != 0) return refuse_error(errno);
    if (std::string reason = status_problem(status, most_bytes); !reason.empty()) return refuse(std::move(reason));
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (own ? O_NOFOLLOW : 0)));
    if (!file.valid()) return refuse_error(errno);
    if (::fstat(file.get(), &status) != 0) return refuse_error(errno);
    if (std::string reason = status_problem(status, most_bytes); !reason.empty()) return refuse(std::move(reason));
    if (writers == Writers::any) return file;
    std::string reason = own ? distrust_of(status) : distrust_of_installed(status);
    return reason.empty() ? std::move(file) : refuse(std::move(reason));
}

}  // namespace

std::string errno_text(int error) {
    return std::generic_category().message(error);
}

Descriptor::~Descriptor() {
    close();
}

int Descriptor::close() {
    if (fd_ < 0) return 0;
    const int result = ::close(std::exchange(fd_, -1));
    return result == 0 || errno == EINTR ? 0 : errno;
}

std::optional<std::string> read_descriptor(int fd, std::string* why_not, std::uint64_t most_bytes) {
    const auto refuse = [why_not](std::string reason) {
        if (why_not != nullptr) *why_not = std::move(reason);
        return std::nullopt;
    };
    std::string bytes;
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
        bytes.reserve(std::min(static_cast<std::uint64_t>(status.st_size), most_bytes) + 1);
    std::size_t filled = 0;
    for (;;) {
        bytes.resize(std::max(bytes.capacity(), filled + 4096));
        const ssize_t got = ::read(fd, bytes.data() + filled, bytes.size() - filled);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return refuse(fmt::format("cannot be read: {}", errno_text(errno)));
        filled += static_cast<std::size_t>(got);
        if (filled > most_bytes) return refuse(fmt::format("it grew beyond {} bytes while it was read", most_bytes));
        if (got == 0) break;
    }
    bytes.resize(filled);
    return bytes;
}

Descriptor open_regular(const fs::path& path, std::uint64_t most_bytes, std::string* why_not) {
    return open_checked(path, Writers::any, most_bytes, why_not);
}

std::optional<std::string> read_file(const fs::path& path, std::uint64_t most_bytes, std::string* why_not) {
    const Descriptor file = open_regular(path, most_bytes, why_not);
    return file.valid() ? read_descriptor(file.get(), why_not, most_bytes) : std::nullopt;
}

Descriptor open_installed(const fs::path& path, std::uint64_t most_bytes, std::string* why_not) {
    return open_checked(path, Writers::library, most_bytes, why_not);
}

Descriptor open_own(const fs::path& path, std::uint64_t most_bytes, std::string* why_not) {
    return open_checked(path, Writers::us, most_bytes, why_not);
}

std::optional<std::string> read_own(const fs::path& path, std::uint64_t most_bytes, std::string* why_not) {
    const Descriptor file = open_own(path, most_bytes, why_not);
    return file.valid() ? read_descriptor(file.get(), why_not, most_bytes) : std::nullopt;
}

std::string make_directories(const fs::path& directory, unsigned mode) {
    if (directory.has_parent_path() && directory.parent_path() != directory) {
        std::error_code ignored;
        if (!fs::exists(directory.parent_path(), ignored))
            if (std::string reason = make_directories(directory.parent_path(), mode); !reason.empty()) return reason;
    }
    if (::mkdir(directory.c_str(), mode) != 0 && errno != EEXIST)
        return fmt::format("cannot make {}: {}", directory.string(), errno_text(errno));
    return {};
}

std::string make_own_folder(const fs::path& folder) {
    if (std::string reason = make_directories(folder, 0700); !reason.empty()) return reason;
    struct stat status {};
    if (::lstat(folder.c_str(), &status) != 0) return fmt::format("{}: {}", folder.string(), errno_text(errno));
    if (!S_ISDIR(status.st_mode)) return fmt::format("{} is not a folder", folder.string());
    const std::string reason = distrust_of(status);
    return reason.empty() ? reason : fmt::format("{}: {}", folder.string(), reason);
}

bool is_own_folder(const fs::path& folder) {
    struct stat status {};
    return ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && distrust_of(status).empty();
}

}  // namespace gdn_cuda::jit
