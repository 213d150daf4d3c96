#include "store.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <system_error>

#include "compiler.hpp"
#include "draft.hpp"
#include "errors.hpp"
#include "file_memo.hpp"
#include "log.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char *kEntrySuffix = ".cubin", *kMemoFolder = "memo", *kMemoSuffix = ".memo", *kTunedFolder = "tuned";
constexpr std::array kDumpSuffixes = {".cu", ".ptx", ".sass"};
constexpr std::uint64_t kMostEntryBytes = 256 << 20;  // typical: 100s of KB, with line info several MB
constexpr std::array kErrorsOfOneEntry = {EEXIST, EISDIR, ENOTDIR, ENOTEMPTY, EBUSY, ETXTBSY};

struct Entry {
    fs::path path;
    std::uint64_t bytes = 0;  // including its dumps
    double used = 0;          // seconds since 1970
    bool regular = false;
};

double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The key in <kernel>-<key>.<suffix>; empty for other names.
std::string key_in(const fs::path& path) {
    const std::string stem = path.stem().string();
    if (stem.size() <= kKeyLength + 1 || stem[stem.size() - kKeyLength - 1] != '-') return {};
    const std::string key = stem.substr(stem.size() - kKeyLength);
    return key.find_first_not_of("0123456789abcdef") == std::string::npos ? key : std::string{};
}

bool is_entry_name(const fs::path& path) {
    return path.extension() == kEntrySuffix && !key_in(path).empty();
}

bool is_dump_name(const fs::path& path) {
    return std::ranges::find(kDumpSuffixes, path.extension()) != kDumpSuffixes.end() && !key_in(path).empty();
}

std::string last_line_of_dump(std::string_view key) {
    return fmt::format("// gdn_cuda dump {}\n", key);
}

// Calls `visit` with each path in a folder, which may change concurrently.
template <class Visitor>
void visit_folder(const fs::path& folder, Visitor&& visit) {
    std::error_code error;
    for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator(); it.increment(error))
        visit(it->path());
}

// `count` bytes of a file that we own, from `from`, counted from the end if negative; empty for any other file.
std::string bytes_of(const fs::path& path, off_t from, std::size_t count, std::uint64_t* file_bytes = nullptr) {
    const Descriptor file = open_own(path, kNoLimit);
    struct stat status {};
    if (!file.valid() || ::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid()) return {};
    if (file_bytes != nullptr) *file_bytes = static_cast<std::uint64_t>(status.st_size);
    const off_t start = from < 0 ? status.st_size + from : from;
    std::string bytes(count, '\0');
    const ssize_t got = start < 0 ? 0 : ::pread(file.get(), bytes.data(), count, start);
    bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return bytes;
}

bool is_our_entry(const fs::path& path) {
    std::uint64_t file_bytes = 0;
    const std::string end = bytes_of(path, -static_cast<off_t>(kTrailerBytes), kTrailerBytes, &file_bytes);
    return is_entry_name(path) && is_trailer(end, file_bytes, key_in(path));
}

bool is_our_dump(const fs::path& path) {
    if (!is_dump_name(path)) return false;
    const std::string last = last_line_of_dump(key_in(path));
    return bytes_of(path, -static_cast<off_t>(last.size()), last.size()) == last;
}

bool is_our_memo(const fs::path& path) {
    return path.extension() == kMemoSuffix && is_memo(bytes_of(path, 0, kMostMemoHeader));
}

std::vector<Entry> entries_in(const fs::path& directory) {
    std::vector<Entry> result;
    visit_folder(directory, [&](const fs::path& path) {
        struct stat status {};
        if (!is_entry_name(path) || ::lstat(path.c_str(), &status) != 0) return;
        Entry entry{path, 0, static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec),
                    S_ISREG(status.st_mode)};
        if (entry.regular) entry.bytes = static_cast<std::uint64_t>(status.st_size);
        for (const char* suffix : kDumpSuffixes)
            if (const fs::path dump = fs::path(path).replace_extension(suffix);
                is_our_dump(dump) && ::lstat(dump.c_str(), &status) == 0)
                entry.bytes += static_cast<std::uint64_t>(status.st_size);
        result.push_back(std::move(entry));
    });
    return result;
}

// The caller has checked that the entry is ours.
bool remove_with_dumps(const fs::path& entry) {
    for (const char* suffix : kDumpSuffixes)
        if (const fs::path dump = fs::path(entry).replace_extension(suffix); is_our_dump(dump)) ::unlink(dump.c_str());
    return ::unlink(entry.c_str()) == 0;
}

// A valid seal does not prove that a compiler wrote the bytes, so checks the kernel too.
std::optional<Cubin> unseal_kernel(const std::string& file, const std::string& key, std::string* why_not) {
    auto cubin = unseal(file, key, why_not);
    if (!cubin) return std::nullopt;
    try {
        const std::string symbol = entry_symbol(cubin->bytes, "its contents");
        if (symbol == cubin->symbol) return cubin;
        *why_not = fmt::format("its kernel is {}, not {}", symbol, cubin->symbol);
    } catch (const Error& error) {
        *why_not = error.what();
    }
    return std::nullopt;
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
    return directory_.empty() ? fs::path{} : directory_ / kMemoFolder / (label + kMemoSuffix);
}

std::optional<Cubin> Store::load(const std::string& name, const std::string& key) const {
    if (directory_.empty()) return std::nullopt;
    const fs::path path = entry_path(name, key);
    std::string problem;
    const auto open = access_ == Access::installed ? open_installed : open_own;
    const Descriptor file = open(path, kMostEntryBytes, &problem);
    if (!file.valid() && problem.empty()) return std::nullopt;
    const auto bytes = file.valid() ? read_descriptor(file.get(), &problem, kMostEntryBytes) : std::nullopt;
    auto cubin = bytes ? unseal_kernel(*bytes, key, &problem) : std::nullopt;
    if (!cubin)
        log_once(Level::warning, fmt::format("{}: {}; it is {}", path.string(), problem,
                                             access_ == Access::cache ? "compiled again" : "passed over"));
    else if (access_ == Access::cache)
        ::futimens(file.get(), nullptr);  // marks it as used now; on failure eviction is only less accurate
    return cubin;
}

std::optional<Refusal> Store::publish(const std::string& name, const std::string& key, const Cubin& cubin) {
    if (directory_.empty() || read_only()) return Refusal{"it is read-only", false};
    if (entry_symbol(cubin.bytes, name) != cubin.symbol)
        throw Error(fmt::format("{}: expected the kernel {} in the cubin, got another", name, cubin.symbol));
    const std::string file = seal(cubin, key);
    if (file.size() > kMostEntryBytes)
        return Refusal{fmt::format("{} bytes are more than an entry may have", file.size()), false};
    const bool ours = access_ == Access::cache;
    const fs::path target = entry_path(name, key);
    int error = 0;
    std::string reason = make_directories(directory_, ours ? 0700 : 0755);
    if (reason.empty()) reason = write_atomically(target, file, ours ? 0600 : 0644, &error);
    if (!reason.empty()) return Refusal{reason, std::ranges::find(kErrorsOfOneEntry, error) == kErrorsOfOneEntry.end()};
    if (ours) evict(target);
    sweep(false);
    return std::nullopt;
}

std::string Store::write_beside(const std::string& name, const std::string& key, const std::string& suffix,
                                const std::string& text) {
    if (directory_.empty()) return "the cache is in memory only";
    const char* newline = text.empty() || text.ends_with('\n') ? "" : "\n";
    return write_atomically(entry_path(name, key).replace_extension(suffix), text + newline + last_line_of_dump(key), 0600);
}

void Store::evict(const fs::path& keep) const {
    std::vector<Entry> entries = entries_in(directory_);
    std::uint64_t total = 0;
    const auto count = [&] {
        total = 0;
        for (const Entry& entry : entries) total += entry.bytes;
        return total;
    };
    if (count() <= max_bytes_) return;
    std::erase_if(entries, [](const Entry& entry) { return !is_our_entry(entry.path); });
    count();
    std::ranges::sort(entries, {}, &Entry::used);
    for (const Entry& entry : entries) {
        if (total <= max_bytes_) return;
        if (entry.path == keep) continue;
        remove_with_dumps(entry.path);
        total -= entry.bytes;
    }
}

void Store::sweep(bool everything) const {
    const MadeOn made_on = everything ? MadeOn::any_host : MadeOn::this_host;
    sweep_drafts(directory_, made_on);
    for (const char* below : {kMemoFolder, kTunedFolder})
        if (is_own_folder(directory_ / below)) sweep_drafts(directory_ / below, made_on);
}

std::vector<EntryInfo> Store::list(bool verify) const {
    std::vector<EntryInfo> result;
    if (directory_.empty()) return result;
    for (const Entry& entry : entries_in(directory_)) {
        EntryInfo info{entry.path.filename().string(), entry.bytes, now() - entry.used, {}};
        if (verify) {
            const auto bytes = read_own(entry.path, kMostEntryBytes, &info.problem);
            if (bytes) unseal_kernel(*bytes, key_in(entry.path), &info.problem);
            if (!bytes && info.problem.empty()) continue;  // removed by another process
        }
        result.push_back(std::move(info));
    }
    std::ranges::sort(result, {}, &EntryInfo::file);
    return result;
}

std::size_t Store::clear() {
    if (directory_.empty() || read_only()) return 0;
    std::size_t removed = 0;
    visit_folder(directory_, [&](const fs::path& path) {
        if (is_our_entry(path))
            removed += remove_with_dumps(path) ? 1 : 0;
        else if (is_our_dump(path))
            ::unlink(path.c_str());
    });
    if (const fs::path memos = directory_ / kMemoFolder; is_own_folder(memos))
        visit_folder(memos, [](const fs::path& path) {
            if (is_our_memo(path)) ::unlink(path.c_str());
        });
    sweep(true);
    return removed;
}

}  // namespace gdn_cuda::jit
