// Cubins on disk. An entry is <kernel>-<key>.cubin: the cubin as compiled, then a trailer with its key, symbol, length and
// SHA-256, so tools read it as ELF and nothing unverified is ever loaded. Writers go through a private temporary and a rename;
// readers take no lock.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "files.hpp"
#include "source.hpp"

namespace gdn_cuda::jit {

constexpr std::size_t kKeyLength = 64;  // hex of a SHA-256

std::string seal(const Cubin& cubin, const std::string& key);  // cubin and trailer
std::optional<Cubin> unseal(const std::string& file, const std::string& key, std::string* why_not = nullptr);  // empty key: any

struct EntryInfo {
    std::string file;  // name inside the directory
    std::uint64_t bytes = 0;
    double age_seconds = 0;  // since last used
    std::string problem;     // empty: it verifies, or verifying was not asked for
};

class Store {
  public:
    // The first usable place of: GDN_JIT_CACHE_DIR, XDG_CACHE_HOME/gdn_cuda, HOME/.cache/gdn_cuda, <tmp>/gdn_cuda-<uid>; a
    // place that others own or may write is refused. None usable: memory only. One warning says why a better place was passed
    // over.
    static Store& instance();
    enum class Access { cache, exported, read_only };  // exported: for other users to read, and never evicted
    Store(std::filesystem::path directory, std::uint64_t max_bytes, Access access = Access::cache);

    const std::filesystem::path& directory() const { return directory_; }   // empty: memory only
    const std::vector<std::string>& refusals() const { return refusals_; }  // "/x: others may write it (mode 0777)"

    std::optional<Cubin> load(const std::string& name, const std::string& key);  // a broken entry is removed and mentioned once
    // False: the caller keeps it in memory. Warns once, or tells `why_not` instead. An Error for what is no cubin with that one
    // entry.
    bool publish(const std::string& name, const std::string& key, const Cubin& cubin, std::string* why_not = nullptr);
    // Dumps, which go when their entry goes; `suffix` is ".cu", ".ptx" or ".sass". Empty, or why it could not be written.
    std::string write_beside(const std::string& name, const std::string& key, const std::string& suffix,
                             const std::string& text);

    std::vector<EntryInfo> list(bool verify) const;
    std::size_t clear();  // entries, temporaries and memos; locks stay. The number of entries removed
    std::filesystem::path entry_path(const std::string& name, const std::string& key) const;
    std::filesystem::path memo_path(const std::string& label) const;  // empty when memory only
    std::filesystem::path temporary_root() const;                     // empty when memory only

  private:
    friend Store open_first_usable();

    void discard(const std::filesystem::path& path, int opened, const std::string& problem) const;
    void evict(const std::filesystem::path& keep) const;
    void sweep_temporaries() const;

    std::filesystem::path directory_;
    std::uint64_t max_bytes_;
    Access access_;
    std::vector<std::string> refusals_;
};

// The chain of places above, told apart so that it can be tested: nothing is remembered, nothing is logged.
Store open_first_usable();

// One compile a key a node. The lock file is never unlinked; the kernel frees it when its holder dies.
class KeyLock {
  public:
    // Blocks; after `patience` says for whom it waits. Throws what interrupts it. A child never waits for what its parent was
    // compiling when it forked.
    KeyLock(const std::filesystem::path& directory, const std::string& key,
            std::chrono::milliseconds patience = std::chrono::seconds(5));
    ~KeyLock();
    KeyLock(const KeyLock&) = delete;
    KeyLock& operator=(const KeyLock&) = delete;

    bool held() const { return fd_ >= 0; }  // false: there is no lock to be had, work without

  private:
    void close();

    int fd_ = -1;
    const unsigned generation_;  // of forks, at its construction
};

}  // namespace gdn_cuda::jit
