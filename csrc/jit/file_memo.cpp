#include "file_memo.hpp"

#include <charconv>
#include <ctime>
#include <utility>

#include "draft.hpp"
#include "files.hpp"
#include "sha256.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kEveryHeader = "gdn_cuda memo ", kHeader = "gdn_cuda memo 2\n";
static_assert(kHeader.size() == kMostMemoHeader);
constexpr std::uint64_t kLargestFileMemo = 256 << 20;
constexpr std::int64_t kSettled = 2'000'000'000;  // file times have a resolution of a few milliseconds

std::int64_t nanoseconds(const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Removes "12 " from the front of `text`.
template <class Number>
bool take_number(std::string_view& text, Number& number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end == text.data() + text.size() || *end != ' ') return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
    return true;
}

}  // namespace

FileStamp FileStamp::of(const struct stat& status) {
    return {static_cast<std::uint64_t>(status.st_size), status.st_ino, nanoseconds(status.st_mtim),
            nanoseconds(status.st_ctim)};
}

bool FileStamp::settled(std::int64_t at) const {
    return changed < at - kSettled;
}

std::int64_t nanoseconds_now() {
    timespec time{};
    ::clock_gettime(CLOCK_REALTIME, &time);
    return nanoseconds(time);
}

// A line holds the file's stamp, the lengths of value and name, then value and name. The last line is the digest of all others.
std::string FileMemo::text() const {
    std::string out(kHeader);
    for (const auto& [name, entry] : entries)
        fmt::format_to(std::back_inserter(out), "{} {} {} {} {} {} {} {}\n", entry.stamp.size, entry.stamp.inode,
                       entry.stamp.modified, entry.stamp.changed, entry.value.size(), name.size(), entry.value, name);
    return out + sha256_hex(out) + "\n";
}

FileMemo FileMemo::read(const fs::path& path) {
    FileMemo memo;
    const auto text = path.empty() ? std::nullopt : read_own(path, kLargestFileMemo);
    if (!text || text->size() < kHeader.size() + kDigestLength + 1 || !text->starts_with(kHeader)) return memo;
    const std::string_view body = std::string_view(*text).substr(0, text->size() - kDigestLength - 1);
    if (text->substr(body.size()) != sha256_hex(body) + "\n") return memo;
    for (std::string_view rest = body.substr(kHeader.size()); !rest.empty();)
        if (!memo.parse_entry(rest)) return {};
    return memo;
}

bool FileMemo::parse_entry(std::string_view& rest) {
    Entry entry;
    std::size_t value = 0, name = 0;
    if (!take_number(rest, entry.stamp.size) || !take_number(rest, entry.stamp.inode) ||
        !take_number(rest, entry.stamp.modified) || !take_number(rest, entry.stamp.changed) || !take_number(rest, value) ||
        !take_number(rest, name) || value > rest.size() || name > rest.size() || rest.size() - value < name + 2)
        return false;
    entry.value = rest.substr(0, value);
    entries.insert_or_assign(std::string(rest.substr(value + 1, name)), std::move(entry));
    rest.remove_prefix(value + 1 + name + 1);
    return true;
}

void FileMemo::write(const fs::path& path) const {
    if (path.empty()) return;
    // On failure the next process reads the files again: slower, never wrong.
    if (make_own_folder(path.parent_path()).empty()) write_atomically(path, text(), 0600);
}

const std::string* FileMemo::find(std::string_view name, const FileStamp& stamp) const {
    const auto entry = entries.find(name);
    return entry != entries.end() && entry->second.stamp == stamp ? &entry->second.value : nullptr;
}

bool is_memo(std::string_view start) {
    if (start.size() < kMostMemoHeader || !start.starts_with(kEveryHeader)) return false;
    const char format = start[kEveryHeader.size()], end = start[kEveryHeader.size() + 1];
    return (format == '1' || format == '2') && (end == '\n' || end == ' ');  // ' ' in other memos than those of files
}

std::string memoised(const fs::path& file, const fs::path& memo, const std::function<std::string()>& compute) {
    struct stat status {};
    const bool exists = ::stat(file.c_str(), &status) == 0;
    const FileStamp stamp = FileStamp::of(status);
    const FileMemo known = FileMemo::read(memo);
    if (exists)
        if (const std::string* value = known.find(file.string(), stamp)) return *value;
    std::string value = compute();
    if (exists && !value.empty() && stamp.settled(nanoseconds_now())) {
        FileMemo fresh;
        fresh.entries.emplace(file.string(), FileMemo::Entry{stamp, value});
        fresh.write(memo);
    }
    return value;
}

}  // namespace gdn_cuda::jit
