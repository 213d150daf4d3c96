// Tuning winners on disk, in tuned/ beside the compiled kernels: one small text file per winner, with a digest. File names
// encode device, version, kernel and problem, so only writers of the same winner collide; the last rename stays.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device.hpp"

namespace gdn_cuda::jit {

struct TunedEntry {
    std::string kernel, problem, choice, heuristic;  // serialized structs of the family; opaque to this layer
    double us = 0, heuristic_us = 0;                 // measured times of `choice` and of `heuristic`
    std::string device;
    int multiprocessors = 0;
    std::string version;  // tuned_version() of the kernels it was measured with

    bool is_of(const DeviceTraits& traits) const { return device == traits.name && multiprocessors == traits.multiprocessors; }
};

std::string to_file(const TunedEntry& entry);  // throws an Error if a field does not fit on one line
std::optional<TunedEntry> from_file(const std::string& text, std::string* why_not = nullptr);

struct TunedFile {
    std::string file;  // name within the folder
    std::optional<TunedEntry> entry;
    std::string problem;  // why `entry` is empty
};

class TunedStore {
  public:
    // An empty path means memory only: nothing is stored.
    explicit TunedStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
    // to_write(): the folder beside the compiled kernels. to_read(): the first cache folder with winners that others
    // cannot have written; it creates and logs nothing, since most machines have none.
    static TunedStore to_write();
    static TunedStore to_read();

    const std::filesystem::path& folder() const { return folder_; }
    std::filesystem::path path_of(const TunedEntry& entry) const;

    std::string write(const TunedEntry& entry) const;  // empty, or the reason for failure
    std::vector<TunedFile> list() const;               // all files with the name of an entry
    bool remove(const std::string& file) const;        // false if it does not exist, or is not ours by its first bytes

    // The valid entries of this version measured on this model of device; logs one line for each entry it skips.
    std::vector<TunedEntry> entries(const std::string& kernel, const DeviceTraits& traits, const std::string& version) const;

  private:
    std::filesystem::path folder_;
};

// The package version and a digest of all headers that these kernels (ids) include: measurements of other code are not used.
using KernelIds = std::span<const char* const>;
std::string tuned_version(KernelIds kernels);
// The entries of kernels.front() that this process may use; none if GDN_TUNED=0.
std::vector<TunedEntry> tuned_entries(KernelIds kernels, const DeviceTraits& traits);

}  // namespace gdn_cuda::jit
