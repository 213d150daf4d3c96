// Cubins on disk. An entry is <kernel>-<key>.cubin: the cubin, then a trailer with key, symbol, length and SHA-256, so that
// tools read it as ELF and nothing unverified is loaded. Writers write a draft and rename it; readers take no lock. The folder
// may also hold a user's own files: only files with the name and the contents of ours are counted, evicted or cleared.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files.hpp"
#include "source.hpp"

namespace gdn_cuda::jit {

constexpr std::size_t kKeyLength = 64;  // hex of a SHA-256
constexpr std::size_t kTrailerBytes = 128;

std::string seal(const Cubin& cubin, const std::string& key);  // cubin and trailer
std::optional<Cubin> unseal(const std::string& file, const std::string& key, std::string* why_not = nullptr);  // empty key: any
// Whether `end`, the last bytes of a file of this size, is the trailer of `key`. This identifies the entry but does not verify
// it.
bool is_trailer(std::string_view end, std::uint64_t file_bytes, std::string_view key);

struct EntryInfo {
    std::string file;  // name within the directory
    std::uint64_t bytes = 0;
    double age_seconds = 0;  // since last use
    std::string problem;     // empty: verified, or no verification requested
};

// Why an entry was not published.
struct Refusal {
    std::string reason;
    bool another_place = false;  // another folder may take it: this disk is full, read-only or failing
};

class Store {
  public:
    // The store in use: the first usable folder, or a later one after that is full (cache_place.hpp).
    static Store& instance();
    // exported: readable by other users, never evicted. installed: read only, with this library, and as trustworthy as it is.
    enum class Access { cache, exported, read_only, installed };
    Store(std::filesystem::path directory, std::uint64_t max_bytes, Access access = Access::cache);

    const std::filesystem::path& directory() const { return directory_; }   // empty: memory only
    const std::vector<std::string>& refusals() const { return refusals_; }  // "/x: others may write it (mode 0777)"

    // Empty for an entry that is missing, damaged or untrusted. The latter two are logged once and left for publish() to
    // replace.
    std::optional<Cubin> load(const std::string& name, const std::string& key) const;
    // Empty on success. Throws an Error unless the cubin has exactly this kernel.
    std::optional<Refusal> publish(const std::string& name, const std::string& key, const Cubin& cubin);
    // Writes a dump, which is removed with its entry; `suffix` is ".cu", ".ptx" or ".sass". Its last line marks it as ours.
    // Returns empty, or the reason for failure.
    std::string write_beside(const std::string& name, const std::string& key, const std::string& suffix,
                             const std::string& text);

    std::vector<EntryInfo> list(bool verify) const;  // all files with the name of an entry
    std::size_t clear();  // removes entries, dumps, drafts and memos but not locks; returns the number of entries
    std::filesystem::path entry_path(const std::string& name, const std::string& key) const;
    std::filesystem::path memo_path(const std::string& label) const;  // empty if memory only

  private:
    friend class CachePlaces;
    bool read_only() const { return access_ == Access::read_only || access_ == Access::installed; }
    void evict(const std::filesystem::path& keep) const;
    void sweep(bool everything) const;

    std::filesystem::path directory_;
    std::uint64_t max_bytes_;
    Access access_;
    std::vector<std::string> refusals_;
};

// One compile per key and node. The lock file is never unlinked; the OS releases the lock when its holder dies.
class KeyLock {
  public:
    // Blocks; after `patience` logs the holder. Interrupts throw. A forked child never waits for its parent's compiles.
    KeyLock(const std::filesystem::path& directory, const std::string& key,
            std::chrono::milliseconds patience = std::chrono::seconds(5));
    ~KeyLock();
    KeyLock(const KeyLock&) = delete;
    KeyLock& operator=(const KeyLock&) = delete;

    bool held() const { return fd_ >= 0; }  // false: locking is unavailable; continue without

  private:
    void close();

    int fd_ = -1;
    const unsigned generation_;  // fork_generation() at construction
};

}  // namespace gdn_cuda::jit
