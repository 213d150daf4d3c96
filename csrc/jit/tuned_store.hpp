// Winners of tuning on disk, in the folder tuned/ beside the compiled kernels: a small text a winner, with a digest. Named by
// device, version, kernel and problem, so that writers of different ones never meet; of the same, the last rename stays.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device.hpp"

namespace gdn_cuda::jit {

struct TunedEntry {
    std::string kernel, problem, choice, heuristic;  // as the family's structs are written; this layer reads none of them
    double us = 0, heuristic_us = 0;                 // measured: of `choice`, and of what is chosen without it
    std::string device;
    int multiprocessors = 0;
    std::string version;  // tuned_version() of the kernels that the choices run

    bool is_of(const DeviceTraits& traits) const { return device == traits.name && multiprocessors == traits.multiprocessors; }
};

std::string to_file(const TunedEntry& entry);  // an Error for a field that does not fit a line
std::optional<TunedEntry> from_file(const std::string& text, std::string* why_not = nullptr);

struct TunedFile {
    std::string file;  // name inside the folder
    std::optional<TunedEntry> entry;
    std::string problem;  // why there is no entry
};

class TunedStore {
  public:
    // An empty path: memory only, nothing is stored.
    explicit TunedStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
    // Where to write: beside the compiled kernels. Where to read: the first place that has winners, if others cannot have
    // written it; nothing is made and nothing is said, because most machines have none.
    static TunedStore to_write();
    static TunedStore to_read();

    const std::filesystem::path& folder() const { return folder_; }
    std::filesystem::path path_of(const TunedEntry& entry) const;

    std::string write(const TunedEntry& entry) const;  // empty, or why it could not be kept
    std::vector<TunedFile> list() const;               // all that have the name of an entry
    bool remove(const std::string& file) const;        // false for what is gone, or begins as no entry does: it is not ours

    // What is sound and made on such a device by this version; one line in the log about each that is not.
    std::vector<TunedEntry> entries(const std::string& kernel, const DeviceTraits& traits, const std::string& version) const;

  private:
    std::filesystem::path folder_;
};

// The package's version and a digest of all headers that these kernels (ids) include: figures of other code are not trusted.
using KernelIds = std::span<const char* const>;
std::string tuned_version(KernelIds kernels);
// The entries filed under the first of `kernels` that this process may use: none with GDN_TUNED=0.
std::vector<TunedEntry> tuned_entries(KernelIds kernels, const DeviceTraits& traits);

}  // namespace gdn_cuda::jit
