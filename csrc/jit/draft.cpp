#include "draft.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <system_error>

#include "errors.hpp"
#include "sha256.hpp"
#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = ".gdn_cuda-draft-";
constexpr std::size_t kHostDigits = 16, kRandomDigits = 16;
constexpr int kTries = 100;  // each failure: a sweeper took the draft, or the name exists

std::string failure(const char* what, const fs::path& path, int error) {
    return fmt::format("{} {}: {}", what, path.string(), errno_text(error));
}

std::string this_host() {
    std::array<char, 256> name{};
    ::gethostname(name.data(), name.size() - 1);
    return sha256_hex(name.data()).substr(0, kHostDigits);
}

std::string new_name() {
    std::random_device random;
    return fmt::format("{}{}-{}-{:08x}{:08x}", kPrefix, this_host(), ::getpid(), random(), random());
}

bool has_only(std::string_view text, std::string_view characters) {
    return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

// The host in a draft's name; empty for other names.
std::string_view host_of(std::string_view name) {
    constexpr std::string_view hex = "0123456789abcdef", digits = hex.substr(0, 10);
    if (!name.starts_with(kPrefix) || name.size() < kPrefix.size() + kHostDigits + kRandomDigits + 3) return {};
    name.remove_prefix(kPrefix.size());
    const std::string_view host = name.substr(0, kHostDigits), random = name.substr(name.size() - kRandomDigits);
    const std::string_view between = name.substr(kHostDigits, name.size() - kHostDigits - kRandomDigits);
    const bool is_draft = has_only(host, hex) && has_only(random, hex) && between.starts_with('-') && between.ends_with('-') &&
                          has_only(between.substr(1, between.size() - 2), digits);
    return is_draft ? host : std::string_view{};
}

// False if a sweeper removed the new draft before it was locked. Without lock support nobody sweeps.
bool lock_new(int fd) {
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
    struct stat status {};
    return ::fstat(fd, &status) == 0 && status.st_nlink != 0;
}

// A draft open for writing; the destructor unlinks it unless it was renamed.
class DraftFile {
  public:
    DraftFile(const fs::path& folder, unsigned mode) {
        for (int tries = 0; tries < kTries; ++tries) {
            const fs::path path = folder / new_name();
            Descriptor made(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
            error_ = made.valid() ? 0 : errno;
            if (!made.valid() && error_ != EEXIST) return;
            if (made.valid() && lock_new(made.get())) {
                path_ = path;
                file_ = std::move(made);
                return;
            }
        }
        if (error_ == 0) error_ = EAGAIN;
    }
    ~DraftFile() {
        if (!path_.empty()) ::unlink(path_.c_str());
    }
    DraftFile(const DraftFile&) = delete;
    DraftFile& operator=(const DraftFile&) = delete;

    int error() const { return error_; }
    int get() const { return file_.get(); }
    // Closes a duplicate to get close()'s error: the draft stays open and locked.
    int flush() const { return Descriptor(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)).close(); }
    int rename_to(const fs::path& target) {
        if (::rename(path_.c_str(), target.c_str()) != 0) return errno;
        path_.clear();
        return 0;
    }

  private:
    fs::path path_;
    Descriptor file_;
    int error_ = 0;
};

int write_all(int fd, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t done = ::write(fd, bytes.data(), bytes.size());
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return done == 0 ? EIO : errno;
        bytes.remove_prefix(static_cast<std::size_t>(done));
    }
    return 0;
}

void sweep(const fs::path& path) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) return;
    const bool folder = S_ISDIR(status.st_mode);
    if (!folder && (!S_ISREG(status.st_mode) || status.st_nlink != 1)) return;
    // Opened for writing, because NFS grants exclusive locks only on files open for writing.
    const Descriptor draft(
        ::open(path.c_str(), (folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_NONBLOCK) | O_NOFOLLOW | O_CLOEXEC));
    if (!draft.valid() || ::flock(draft.get(), LOCK_EX | LOCK_NB) != 0) return;
    std::error_code ignored;
    if (folder)
        fs::remove_all(path, ignored);
    else
        ::unlink(path.c_str());
}

}  // namespace

std::string write_atomically(const fs::path& target, std::string_view bytes, unsigned mode, int* error) {
    int ignored = 0;
    int& failed = error != nullptr ? *error : ignored;
    // Reasons name the folder rather than the draft, whose name is random: log_once() suppresses only equal messages.
    const fs::path folder = target.parent_path();
    struct stat there {};
    if (::lstat(target.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
        failed = EEXIST;
        return fmt::format("{} is in the way: it is not a regular file", target.string());
    }
    DraftFile draft(folder, mode);
    if ((failed = draft.error()) != 0) return failure("cannot create a file in", folder, failed);
    if ((failed = write_all(draft.get(), bytes)) != 0) return failure("cannot write a file in", folder, failed);
    if (::fsync(draft.get()) != 0) return failure("cannot sync a file in", folder, failed = errno);
    if ((failed = draft.flush()) != 0) return failure("cannot close a file in", folder, failed);
    if ((failed = draft.rename_to(target)) != 0) return failure("cannot rename to", target, failed);
    // The rename is visible already; if this fsync fails, a crash can at worst lose the entry.
    const Descriptor synced(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (synced.valid()) ::fsync(synced.get());
    return {};
}

std::string trial_of_writing(const fs::path& folder, std::size_t bytes) {
    const DraftFile draft(folder, 0600);
    int error = draft.error();
    if (error != 0) return failure("cannot create a file in", folder, error);
    // fallocate is faster than writing, where supported.
    if (::fallocate(draft.get(), 0, 0, static_cast<off_t>(bytes)) != 0) error = errno;
    if (error == EOPNOTSUPP || error == ENOSYS || error == EINTR) error = write_all(draft.get(), std::string(bytes, '\0'));
    return error == 0 ? std::string{} : failure("cannot write a file in", folder, error);
}

void sweep_drafts(const fs::path& folder, MadeOn made_on) {
    const std::string here = this_host();
    std::error_code error;
    for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error)) {
        const std::string name = it->path().filename().string();
        const std::string_view host = host_of(name);
        if (!host.empty() && (made_on == MadeOn::any_host || host == here)) sweep(it->path());
    }
}

std::optional<TemporaryDirectory> TemporaryDirectory::below(const fs::path& parent, std::string* why_not) {
    std::string reason = make_directories(parent, 0700);
    for (int tries = 0; tries < kTries && reason.empty(); ++tries) {
        const fs::path path = parent / new_name();
        if (::mkdir(path.c_str(), 0700) != 0) {
            if (errno != EEXIST) reason = failure("cannot make a folder in", parent, errno);
            continue;
        }
        Descriptor lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (lock.valid() && lock_new(lock.get())) return TemporaryDirectory(path, std::move(lock));
        ::rmdir(path.c_str());
    }
    if (why_not != nullptr) *why_not = reason.empty() ? failure("cannot lock a folder in", parent, EAGAIN) : std::move(reason);
    return std::nullopt;
}

TemporaryDirectory TemporaryDirectory::anywhere(const fs::path& fallback) {
    std::error_code error;
    std::string first, second = "memory only";
    const fs::path system = fs::temp_directory_path(error);
    if (error) {
        first = error.message();
    } else if (first = distrust_of_parents(fs::absolute(system) / "."); first.empty()) {
        std::string pattern = (system / "gdn_cuda-XXXXXX").string();
        if (::mkdtemp(pattern.data()) != nullptr) return TemporaryDirectory(pattern);
        first = failure("cannot make a folder in", system, errno);
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

}  // namespace gdn_cuda::jit
