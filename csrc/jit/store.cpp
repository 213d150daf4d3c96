#include "store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <system_error>

#include "compiler.hpp"
#include "errors.hpp"
#include "log.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char* kEntrySuffix = ".cubin";
constexpr const char* kDumpSuffixes[] = {".cu", ".ptx", ".sass"};
constexpr auto kStaleTemporary = std::chrono::hours(1);

struct Entry {
    fs::path path;
    std::uint64_t bytes = 0;  // with its dumps
    fs::file_time_type used;
};

// <kernel>-<key>.cubin. A user may have named a folder that holds other cubins; those are not ours to evict or clear.
bool is_entry(const fs::path& path) {
    const std::string stem = path.stem().string();
    if (path.extension() != kEntrySuffix || stem.size() <= kKeyLength || stem[stem.size() - kKeyLength - 1] != '-')
        return false;
    return std::all_of(stem.end() - kKeyLength, stem.end(), [](unsigned char c) { return std::isalnum(c); });
}

std::vector<Entry> entries_in(const fs::path& directory) {
    std::vector<Entry> result;
    std::error_code error;
    for (auto it = fs::directory_iterator(directory, error); !error && it != fs::directory_iterator(); it.increment(error)) {
        if (!is_entry(it->path())) continue;
        std::error_code gone;  // another process may remove it meanwhile
        Entry entry{it->path(), fs::file_size(it->path(), gone), {}};
        if (!gone) entry.used = fs::last_write_time(it->path(), gone);
        if (gone) continue;
        for (const char* suffix : kDumpSuffixes) {
            std::error_code none;
            const std::uint64_t bytes = fs::file_size(fs::path(it->path()).replace_extension(suffix), none);
            if (!none) entry.bytes += bytes;
        }
        result.push_back(std::move(entry));
    }
    return result;
}

bool remove_with_dumps(const fs::path& entry) {
    std::error_code ignored;
    for (const char* suffix : kDumpSuffixes) fs::remove(fs::path(entry).replace_extension(suffix), ignored);
    return fs::remove(entry, ignored);
}

}  // namespace

Store::Store(fs::path directory, std::uint64_t max_bytes, Access access)
    : directory_(std::move(directory)), max_bytes_(max_bytes), access_(access) {}

fs::path Store::entry_path(const std::string& name, const std::string& key) const {
    std::string file = name;
    for (char& c : file)
        if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') c = '-';
    return directory_ / (file + "-" + key + kEntrySuffix);
}

fs::path Store::memo_path(const std::string& label) const {
    return directory_.empty() ? fs::path{} : directory_ / "memo" / (label + ".memo");
}

fs::path Store::temporary_root() const {
    return directory_.empty() ? fs::path{} : directory_ / "tmp";
}

void Store::discard(const fs::path& path, int opened, const std::string& problem) const {
    const bool remove = access_ != Access::read_only;
    log_once(Level::warning, fmt::format("{}: {}; {}", path.string(), problem,
                                         remove ? "it is removed and compiled again" : "it is passed over"));
    if (!remove) return;
    // Only the file that was read: another process may have put a good one there since.
    struct stat read {
    }, there{};
    if (::fstat(opened, &read) == 0 && ::stat(path.c_str(), &there) == 0 && read.st_ino == there.st_ino &&
        read.st_dev == there.st_dev)
        remove_with_dumps(path);
}

std::optional<Cubin> Store::load(const std::string& name, const std::string& key) {
    if (directory_.empty()) return std::nullopt;
    const fs::path path = entry_path(name, key);
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string problem;
    if (!file.valid()) {
        if (errno != ENOENT) log_once(Level::warning, fmt::format("{}: cannot be read: {}", path.string(), errno_text(errno)));
        return std::nullopt;
    }
    const auto bytes = read_descriptor(file.get(), &problem);
    auto cubin = bytes ? unseal(*bytes, key, &problem) : std::nullopt;
    if (!cubin)
        discard(path, file.get(), problem);
    else if (access_ == Access::cache)
        ::futimens(file.get(), nullptr);  // last used now; should it fail, eviction only guesses worse
    return cubin;
}

bool Store::publish(const std::string& name, const std::string& key, const Cubin& cubin, std::string* why_not) {
    if (directory_.empty() || access_ == Access::read_only) return false;
    if (entry_symbol(cubin.bytes, name) != cubin.symbol)
        throw Error(fmt::format("{}: expected the kernel {} in the cubin, got another", name, cubin.symbol));
    const bool ours = access_ == Access::cache;
    std::string reason = make_directories(directory_, ours ? 0700 : 0755);
    const fs::path target = entry_path(name, key);
    if (reason.empty()) reason = write_atomically(target, seal(cubin, key), temporary_root(), ours ? 0600 : 0644);
    if (!ours) {
        std::error_code ignored;
        fs::remove(temporary_root(), ignored);  // unless another writer still has something in it
    }
    if (!reason.empty()) {
        if (why_not != nullptr)
            *why_not = reason;
        else
            log_once(Level::warning, fmt::format("compiled kernels cannot be kept in {}: {}; they stay in memory",
                                                 directory_.string(), reason));
        return false;
    }
    if (ours) {
        evict(target);
        sweep_temporaries();
    }
    return true;
}

std::string Store::write_beside(const std::string& name, const std::string& key, const std::string& suffix,
                                const std::string& text) {
    if (directory_.empty()) return "the cache is in memory only";
    return write_atomically(entry_path(name, key).replace_extension(suffix), text, temporary_root(), 0600);
}

void Store::evict(const fs::path& keep) const {
    std::vector<Entry> entries = entries_in(directory_);
    std::uint64_t total = 0;
    for (const Entry& entry : entries) total += entry.bytes;
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
    for (const Entry& entry : entries) {
        if (total <= max_bytes_) return;
        if (entry.path == keep) continue;
        remove_with_dumps(entry.path);
        total -= entry.bytes;
    }
}

void Store::sweep_temporaries() const {
    const auto oldest = fs::file_time_type::clock::now() - kStaleTemporary;
    std::error_code error;
    for (auto it = fs::directory_iterator(temporary_root(), error); !error && it != fs::directory_iterator();
         it.increment(error)) {
        std::error_code ignored;
        const auto written = fs::last_write_time(it->path(), ignored);
        if (!ignored && written < oldest) fs::remove_all(it->path(), ignored);
    }
}

std::vector<EntryInfo> Store::list(bool verify) const {
    std::vector<EntryInfo> result;
    if (directory_.empty()) return result;
    const auto now = fs::file_time_type::clock::now();
    for (const Entry& entry : entries_in(directory_)) {
        EntryInfo info{
            entry.path.filename().string(), entry.bytes, std::chrono::duration<double>(now - entry.used).count(), {}};
        if (verify) {
            const auto bytes = read_file(entry.path, &info.problem);
            const std::string stem = entry.path.stem().string();
            if (bytes) unseal(*bytes, stem.substr(stem.rfind('-') + 1), &info.problem);
        }
        result.push_back(std::move(info));
    }
    std::sort(result.begin(), result.end(), [](const EntryInfo& a, const EntryInfo& b) { return a.file < b.file; });
    return result;
}

std::size_t Store::clear() {
    if (directory_.empty() || access_ == Access::read_only) return 0;
    std::size_t removed = 0;
    for (const Entry& entry : entries_in(directory_)) removed += remove_with_dumps(entry.path) ? 1 : 0;
    std::error_code ignored;
    for (const fs::path& folder : {temporary_root(), directory_ / "memo"})
        for (auto it = fs::directory_iterator(folder, ignored); !ignored && it != fs::directory_iterator();
             it.increment(ignored)) {
            std::error_code gone;
            fs::remove_all(it->path(), gone);
        }
    return removed;
}

}  // namespace gdn_cuda::jit
