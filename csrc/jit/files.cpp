#include "files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "errors.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

std::string failure(const char* what, const fs::path& path, int error) {
    return fmt::format("{} {}: {}", what, path.string(), errno_text(error));
}

int write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t done = ::write(fd, bytes.data(), bytes.size());
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done == 0 ? EIO : errno;
        bytes.remove_prefix(static_cast<std::size_t>(done));
    }
    return 0;
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

std::optional<std::string> read_descriptor(int fd, std::string* why_not) {
    std::string bytes;
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
        bytes.reserve(static_cast<std::size_t>(status.st_size) + 1);
    std::size_t filled = 0;
    for (;;) {
        bytes.resize(std::max(bytes.capacity(), filled + 4096));
        const ssize_t got = ::read(fd, bytes.data() + filled, bytes.size() - filled);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            if (why_not != nullptr) *why_not = errno_text(errno);
            return std::nullopt;
        }
        filled += static_cast<std::size_t>(got);
        if (got == 0) break;
    }
    bytes.resize(filled);
    return bytes;
}

std::optional<std::string> read_file(const fs::path& path, std::string* why_not) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.valid()) {
        if (why_not != nullptr) *why_not = errno_text(errno);
        return std::nullopt;
    }
    return read_descriptor(file.get(), why_not);
}

std::string make_directories(const fs::path& directory, unsigned mode) {
    if (directory.has_parent_path() && directory.parent_path() != directory) {
        std::error_code ignored;
        if (!fs::exists(directory.parent_path(), ignored))
            if (std::string reason = make_directories(directory.parent_path(), mode); !reason.empty()) return reason;
    }
    if (::mkdir(directory.c_str(), mode) != 0 && errno != EEXIST) return failure("cannot make", directory, errno);
    return {};
}

std::optional<TemporaryDirectory> TemporaryDirectory::below(const fs::path& parent, std::string* why_not) {
    std::string reason;
    // Another writer that is done may remove an empty `parent` between our two steps; each loss means that somebody finished.
    constexpr int kTries = 1000;
    for (int tries = 0; tries < kTries; ++tries) {
        reason = make_directories(parent, 0700);
        if (!reason.empty()) break;
        std::string pattern = (parent / fmt::format("{}-XXXXXX", ::getpid())).string();
        if (::mkdtemp(pattern.data()) != nullptr) return TemporaryDirectory(pattern);
        const int error = errno;
        reason = failure("cannot make a folder in", parent, error);
        if (error != ENOENT) break;
    }
    if (why_not != nullptr) *why_not = std::move(reason);
    return std::nullopt;
}

TemporaryDirectory TemporaryDirectory::anywhere(const fs::path& fallback) {
    std::error_code error;
    std::string first, second = "memory only";
    const fs::path system = fs::temp_directory_path(error);
    if (!error) {
        std::string pattern = (system / "gdn_cuda-XXXXXX").string();
        if (::mkdtemp(pattern.data()) != nullptr) return TemporaryDirectory(pattern);
        first = failure("cannot make a folder in", system, errno);
    } else {
        first = error.message();
    }
    if (!fallback.empty())
        if (auto made = below(fallback, &second)) return std::move(*made);
    throw Error(
        fmt::format("a folder for temporary files: expected a writable TMPDIR or cache directory, got: {}; {}", first, second));
}

TemporaryDirectory::~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::string write_atomically(const fs::path& target, std::string_view bytes, const fs::path& scratch, unsigned mode) {
    std::string reason;
    const auto directory = TemporaryDirectory::below(scratch, &reason);
    if (!directory) return reason;
    const fs::path draft = directory->path() / "draft";
    Descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    // Reasons name the folder, not the draft, whose name is another each time: callers say the same thing only once.
    if (!file.valid()) return failure("cannot create a file in", scratch, errno);
    if (const int error = write_all(file.get(), bytes)) return failure("cannot write a file in", scratch, error);
    if (::fsync(file.get()) != 0) return failure("cannot sync a file in", scratch, errno);
    if (const int error = file.close()) return failure("cannot close a file in", scratch, error);
    if (::rename(draft.c_str(), target.c_str()) != 0) return failure("cannot rename to", target, errno);
    // The rename is visible already; should the folder not sync, a crash may at worst lose the entry.
    const Descriptor folder(::open(target.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.valid()) ::fsync(folder.get());
    return {};
}

}  // namespace gdn_cuda::jit
