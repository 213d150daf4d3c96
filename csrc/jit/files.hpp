// File access for the cache: reads that never block and are bounded in size, and folders. Failures are returned as text, not
// thrown, since most only mean "try the next folder".
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace gdn_cuda::jit {

// An owned file descriptor.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }

    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int close();  // 0 or an errno: some file systems report a failed write only at close

  private:
    int fd_;
};

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::string errno_text(int error);
std::optional<std::string> read_descriptor(int fd, std::string* why_not = nullptr, std::uint64_t most_bytes = kNoLimit);
// Everything below accepts only regular files of at most `most_bytes`: a FIFO would block, opening a device may have side
// effects, and a sparse file may exceed memory.
std::optional<std::string> read_file(const std::filesystem::path& path, std::uint64_t most_bytes,
                                     std::string* why_not = nullptr);
Descriptor open_regular(const std::filesystem::path& path, std::uint64_t most_bytes, std::string* why_not = nullptr);

// For files that were installed with this library: links are followed, and nobody may write it who cannot change the library.
// `why_not` stays empty if the file does not exist.
Descriptor open_installed(const std::filesystem::path& path, std::uint64_t most_bytes, std::string* why_not = nullptr);
// For files of the cache: not a symlink, owned by us or root. `why_not` stays empty if the file does not exist.
Descriptor open_own(const std::filesystem::path& path, std::uint64_t most_bytes, std::string* why_not = nullptr);
std::optional<std::string> read_own(const std::filesystem::path& path, std::uint64_t most_bytes,
                                    std::string* why_not = nullptr);

// Empty on success, else the reason. Missing parents are created with `mode` too.
std::string make_directories(const std::filesystem::path& directory, unsigned mode);
// For a folder of the cache: created with mode 0700 if missing; refused if it is a symlink or writable by others.
std::string make_own_folder(const std::filesystem::path& folder);
bool is_own_folder(const std::filesystem::path& folder);

}  // namespace gdn_cuda::jit
