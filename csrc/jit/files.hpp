// Files as the cache needs them: whole reads, durable writes, private folders. Failures are returned as text, not thrown: most
// of them only mean "the next place".
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

// An open file descriptor that closes itself.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int close();  // 0 or an errno: some file systems report a failed write only here

  private:
    int fd_;
};

std::string errno_text(int error);
std::optional<std::string> read_descriptor(int fd, std::string* why_not = nullptr);
std::optional<std::string> read_file(const std::filesystem::path& path, std::string* why_not = nullptr);

// A new folder below `parent` (made 0700 when missing) that only we can enter, removed with all it holds.
class TemporaryDirectory {
  public:
    static std::optional<TemporaryDirectory> below(const std::filesystem::path& parent, std::string* why_not);
    static TemporaryDirectory anywhere(const std::filesystem::path& fallback);  // the system's place, else `fallback`; throws
    ~TemporaryDirectory();
    TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
    TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;

    const std::filesystem::path& path() const { return path_; }

  private:
    explicit TemporaryDirectory(std::filesystem::path path) : path_(std::move(path)) {}

    std::filesystem::path path_;
};

// Empty on success, else the reason. Missing parents are made with `mode` too.
std::string make_directories(const std::filesystem::path& directory, unsigned mode);
// Through a private temporary below `scratch` (same file system), fsync and rename, so readers see all of it or nothing.
std::string write_atomically(const std::filesystem::path& target, std::string_view bytes, const std::filesystem::path& scratch,
                             unsigned mode);

}  // namespace gdn_cuda::jit
