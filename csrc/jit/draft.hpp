// What is not finished yet: files on their way to their names, and folders for a compiler's temporaries. A draft is named
// .gdn_cuda-draft-<host>-<process>-<random> and locked (flock) by its maker for as long as that lives. So what a killed process
// left behind is told from what is in use by its name and its lock; clocks and times are never asked.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "files.hpp"

namespace gdn_cuda::jit {

// Writes a draft in the target's folder, syncs it and renames it, so that readers see all of it or nothing. A target that is
// not a regular file is not replaced. Empty on success, else the reason, and the errno in `error`.
std::string write_atomically(const std::filesystem::path& target, std::string_view bytes, unsigned mode, int* error = nullptr);

// Makes a draft of so many bytes in `folder` and removes it. Permissions alone do not tell: root has them all, even on a disk
// that is full or read-only.
std::string trial_of_writing(const std::filesystem::path& folder, std::size_t bytes);

// Removes drafts whose makers are dead: of this host, where a lock that is free proves it; or of all hosts, on a user's word.
enum class MadeOn { this_host, any_host };
void sweep_drafts(const std::filesystem::path& folder, MadeOn made_on);

// A new folder that only we can enter, removed with all it holds.
class TemporaryDirectory {
  public:
    static std::optional<TemporaryDirectory> below(const std::filesystem::path& parent, std::string* why_not);  // a draft
    static TemporaryDirectory anywhere(const std::filesystem::path& fallback);  // the system's place, else `fallback`; throws
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
