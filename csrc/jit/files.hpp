// Files as the cache needs them: reads that never wait and never grow without bound, folders. Failures are returned as text,
// not thrown: most of them only mean "the next place".
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace gdn_cuda::jit {

// An open file descriptor that closes itself.
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
    int close();  // 0 or an errno: some file systems report a failed write only here

  private:
    int fd_;
};

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

std::string errno_text(int error);
std::optional<std::string> read_descriptor(int fd, std::string* why_not = nullptr, std::uint64_t most_bytes = kNoLimit);
// Everything below takes only regular files of at most `most_bytes`: a fifo would block, a device may act on being opened, and
// a sparse file may be larger than memory.
std::optional<std::string> read_file(const std::filesystem::path& path, std::uint64_t most_bytes,
                                     std::string* why_not = nullptr);
Descriptor open_regular(const std::filesystem::path& path, std::uint64_t most_bytes, std::string* why_not = nullptr);

// Files of the cache: no link, and of ours or root's. `why_not` stays empty for a file that does not exist.
Descriptor open_own(const std::filesystem::path& path, std::uint64_t most_bytes, std::string* why_not = nullptr);
std::optional<std::string> read_own(const std::filesystem::path& path, std::uint64_t most_bytes,
                                    std::string* why_not = nullptr);

// Empty on success, else the reason. Missing parents are made with `mode` too.
std::string make_directories(const std::filesystem::path& directory, unsigned mode);
// A folder of the cache: made 0700 when missing, and refused when it is a link, or another user's to write.
std::string make_own_folder(const std::filesystem::path& folder);
bool is_own_folder(const std::filesystem::path& folder);

}  // namespace gdn_cuda::jit
