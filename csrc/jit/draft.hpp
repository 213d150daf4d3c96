// Drafts: temporary files that are renamed when complete, and temporary folders for compilers. A draft is named
// .gdn_cuda-draft-<host>-<process>-<random>, and the process that created it holds a flock on it for its lifetime. So the name
// and the lock, never a clock, tell the leftovers of a killed process from drafts in use.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "files.hpp"

namespace gdn_cuda::jit {

// Writes a draft in the target's folder, syncs it and renames it, so that readers see either all of it or nothing. A target
// that is not a regular file is not replaced. Returns empty on success, else the reason, with the errno in `error`.
std::string write_atomically(const std::filesystem::path& target, std::string_view bytes, unsigned mode, int* error = nullptr);

// Tests writing by creating and removing a draft of `bytes` bytes. Permission bits are not enough: root passes them all, even
// on a full or read-only disk.
std::string trial_of_writing(const std::filesystem::path& folder, std::size_t bytes);

// Removes drafts of dead processes: of this host, where a free lock proves it, or, if the user says so, of all hosts.
enum class MadeOn { this_host, any_host };
void sweep_drafts(const std::filesystem::path& folder, MadeOn made_on);

// A new folder with mode 0700, removed with its contents by the destructor.
class TemporaryDirectory {
  public:
    static std::optional<TemporaryDirectory> below(const std::filesystem::path& parent, std::string* why_not);  // a draft
    static TemporaryDirectory anywhere(const std::filesystem::path& fallback);  // in the system's place, else `fallback`
    ~TemporaryDirectory();
    TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)), lock_(std::move(other.lock_)) {
        other.path_.clear();
    }
    TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;

    const std::filesystem::path& path() const { return path_; }

  private:
    explicit TemporaryDirectory(std::filesystem::path path, Descriptor lock = Descriptor())
        : path_(std::move(path)), lock_(std::move(lock)) {}

    std::filesystem::path path_;
    Descriptor lock_;
};

}  // namespace gdn_cuda::jit
