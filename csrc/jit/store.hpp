// Cubins on disk. An entry is <kernel>-<key>.cubin: the cubin as compiled, then a trailer with its key, symbol, length and
// SHA-256, so tools read it as ELF and nothing unverified is ever loaded. Writers go through a draft and a rename; readers take
// no lock. A user may have named a folder that holds files of their own: only what has the name and the contents of ours is
// counted, evicted or cleared.
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
// Whether `end`, the last bytes of a file of this size, is the trailer of the key's entry. It identifies, it does not verify.
bool is_trailer(std::string_view end, std::uint64_t file_bytes, std::string_view key);

struct EntryInfo {
    std::string file;  // name inside the directory
    std::uint64_t bytes = 0;
    double age_seconds = 0;  // since last used
    std::string problem;     // empty: it verifies, or verifying was not asked for
};

// Why an entry was not published.
struct Refusal {
    std::string reason;
    bool another_place = false;  // may take it: this one's disk is full, read-only or failing
};

class Store {
  public:
    // What is written now: the first usable place, or a later one once that is full (cache_place.hpp).
    static Store& instance();
    enum class Access { cache, exported, read_only };  // exported: for other users to read, and never evicted
    Store(std::filesystem::path directory, std::uint64_t max_bytes, Access access = Access::cache);

    const std::filesystem::path& directory() const { return directory_; }   // empty: memory only
    const std::vector<std::string>& refusals() const { return refusals_; }  // "/x: others may write it (mode 0777)"

    // Nothing for an entry that is missing, broken or not to be trusted, which is left for publish() to replace; all but the
    // first are mentioned once.
    std::optional<Cubin> load(const std::string& name, const std::string& key) const;
    // Empty on success. An Error for what is no cubin with that one entry.
    std::optional<Refusal> publish(const std::string& name, const std::string& key, const Cubin& cubin);
    // Dumps, which go when their entry goes; `suffix` is ".cu", ".ptx" or ".sass". Their last line says that they are ours.
    // Empty, or why it could not be written.
    std::string write_beside(const std::string& name, const std::string& key, const std::string& suffix,
                             const std::string& text);

    std::vector<EntryInfo> list(bool verify) const;  // all that have the name of an entry
    std::size_t clear();  // entries, dumps, drafts and memos; locks stay. The number of entries removed
    std::filesystem::path entry_path(const std::string& name, const std::string& key) const;
    std::filesystem::path memo_path(const std::string& label) const;  // empty when memory only

  private:
    friend class CachePlaces;
    void evict(const std::filesystem::path& keep) const;
    void sweep(bool everything) const;

    std::filesystem::path directory_;
    std::uint64_t max_bytes_;
    Access access_;
    std::vector<std::string> refusals_;
};

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
