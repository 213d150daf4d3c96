#include "tuned_store.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "cache_place.hpp"
#include "draft.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "key.hpp"
#include "log.hpp"
#include "source.hpp"
#include "store.hpp"
#include "text.hpp"
#include "toolchain.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char *kFolder = "tuned", *kSuffix = ".tuned", *kFirstLine = "gdn_cuda tuned 1\n", *kDigest = "sha256";
constexpr std::size_t kDigestOfVersion = 16, kKeyDigits = 64;
constexpr std::uint64_t kLargestEntry = 64 << 10;

// All fields with their labels, in file order.
template <class Entry, class Visitor>
void visit_fields(Entry& entry, Visitor&& visit) {
    visit("kernel", entry.kernel);
    visit("problem", entry.problem);
    visit("device", entry.device);
    visit("multiprocessors", entry.multiprocessors);
    visit("version", entry.version);
    visit("choice", entry.choice);
    visit("us", entry.us);
    visit("heuristic", entry.heuristic);
    visit("heuristic_us", entry.heuristic_us);
}

// Removes "label: value\n" from the front of `text`.
std::optional<std::string_view> take_line(std::string_view& text, const std::string& label) {
    const std::string head = label + ": ";
    const std::size_t end = text.find('\n');
    if (!text.starts_with(head) || end == std::string_view::npos) return std::nullopt;
    const std::string_view value = text.substr(head.size(), end - head.size());
    text.remove_prefix(end + 1);
    return value;
}

bool read_value(std::string_view text, std::string& value) {
    value = text;
    return !text.empty();
}
template <class Number>
bool read_value(std::string_view text, Number& value) {
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && rest == text.data() + text.size() && value > 0 && std::isfinite(static_cast<double>(value));
}

// <kernel>-<key>.tuned
bool is_name(const fs::path& path) {
    const std::string stem = path.stem().string();
    return path.extension() == kSuffix && stem.size() > kKeyDigits + 1 && stem[stem.size() - kKeyDigits - 1] == '-' &&
           stem.find_first_not_of("0123456789abcdef", stem.size() - kKeyDigits) == std::string::npos;
}

std::string summary(const TunedEntry& entry) {
    return fmt::format("{} ({} multiprocessors), version {}", entry.device, entry.multiprocessors, entry.version);
}

}  // namespace

std::string to_file(const TunedEntry& entry) {
    std::string text = kFirstLine;
    visit_fields(entry, [&](const char* label, const auto& value) {
        const std::string line = fmt::format("{}", value);
        if (line.empty() || line.find('\n') != std::string::npos)
            throw Error(fmt::format("tuned entry: {}: expected one line of text, got \"{}\"", label, line));
        text += fmt::format("{}: {}\n", label, line);
    });
    return text + fmt::format("{}: {}\n", kDigest, sha256_hex(text));
}

std::optional<TunedEntry> from_file(const std::string& text, std::string* why_not) {
    const auto refuse = [&](std::string reason) {
        if (why_not != nullptr) *why_not = std::move(reason);
        return std::nullopt;
    };
    if (!text.starts_with(kFirstLine)) return refuse("its first line is not that of a tuned entry of this version");
    const std::size_t last = text.rfind(fmt::format("\n{}: ", kDigest));
    if (last == std::string::npos) return refuse("it is truncated");
    const std::string body = text.substr(0, last + 1);
    if (text.substr(last + 1) != fmt::format("{}: {}\n", kDigest, sha256_hex(body)))
        return refuse("its contents do not match its digest");
    TunedEntry entry;
    std::string_view rest = std::string_view(body).substr(std::string_view(kFirstLine).size());
    std::string wrong;
    visit_fields(entry, [&](const char* label, auto& value) {
        if (!wrong.empty()) return;
        const auto line = take_line(rest, label);
        if (!line || !read_value(*line, value)) wrong = label;
    });
    if (!wrong.empty()) return refuse(fmt::format("its line \"{}\" is missing or malformed", wrong));
    if (!rest.empty()) return refuse("it has lines that a tuned entry does not have");
    return entry;
}

TunedStore TunedStore::to_write() {
    const Store& store = Store::instance();
    return TunedStore(store.directory().empty() ? fs::path{} : store.directory() / kFolder);
}

TunedStore TunedStore::to_read() {
    const fs::path place = first_place_with(kFolder);
    return TunedStore(place.empty() ? fs::path{} : place / kFolder);
}

fs::path TunedStore::path_of(const TunedEntry& entry) const {
    std::string name = entry.kernel;
    std::replace(name.begin(), name.end(), '/', '-');
    KeyBuilder key;
    key.add("kernel", entry.kernel).add("problem", entry.problem).add("device", entry.device).add("version", entry.version);
    key.add("multiprocessors", std::to_string(entry.multiprocessors));
    return folder_ / (name + "-" + key.hex() + kSuffix);
}

std::string TunedStore::write(const TunedEntry& entry) const {
    const std::string text = to_file(entry);
    if (folder_.empty()) return "there is no usable cache directory";
    if (std::string reason = make_own_folder(folder_); !reason.empty()) return reason;
    return write_atomically(path_of(entry), text, 0600);
}

std::vector<TunedFile> TunedStore::list() const {
    std::vector<TunedFile> result;
    if (folder_.empty()) return result;
    std::error_code error;
    for (auto it = fs::directory_iterator(folder_, error); !error && it != fs::directory_iterator(); it.increment(error)) {
        if (!is_name(it->path())) continue;
        TunedFile found{it->path().filename().string(), std::nullopt, {}};
        if (const auto text = read_own(it->path(), kLargestEntry, &found.problem))
            found.entry = from_file(*text, &found.problem);
        if (found.entry && path_of(*found.entry).filename() != it->path().filename()) {
            found.entry.reset();
            found.problem = "its name is that of another entry";
        }
        result.push_back(std::move(found));
    }
    std::sort(result.begin(), result.end(), [](const TunedFile& a, const TunedFile& b) { return a.file < b.file; });
    return result;
}

bool TunedStore::remove(const std::string& file) const {
    if (folder_.empty()) return false;
    if (fs::path(file).filename() != fs::path(file) || !is_name(file))
        throw Error(fmt::format("tuned entry: expected the name of a file <kernel>-<key>{} in {}, got {}", kSuffix,
                                folder_.string(), file));
    const auto text = read_own(folder_ / file, kLargestEntry);
    if (!text || !text->starts_with(kFirstLine)) return false;
    std::error_code ignored;
    return fs::remove(folder_ / file, ignored);
}

std::vector<TunedEntry> TunedStore::entries(const std::string& kernel, const DeviceTraits& traits,
                                            const std::string& version) const {
    std::vector<TunedEntry> result;
    for (const TunedFile& found : list()) {
        const std::string path = (folder_ / found.file).string();
        if (!found.entry)
            log_once(Level::warning, fmt::format("{}: {}; it is ignored", path, found.problem));
        else if (found.entry->kernel != kernel)
            continue;
        else if (!found.entry->is_of(traits))
            log_once(Level::info, fmt::format("{}: tuned on {}, this is {} ({} multiprocessors); it is ignored", path,
                                              summary(*found.entry), traits.name, traits.multiprocessors));
        else if (found.entry->version != version)
            log_once(Level::info,
                     fmt::format("{}: tuned on {}, this is version {}; it is ignored", path, summary(*found.entry), version));
        else
            result.push_back(*found.entry);
    }
    return result;
}

std::string tuned_version(KernelIds kernels) {
    std::string code;
    for (const char* kernel : kernels) code += include_of(kernel);
    return fmt::format("{}-{}", GDN_VERSION, included_digest(code).substr(0, kDigestOfVersion));
}

std::vector<TunedEntry> tuned_entries(KernelIds kernels, const DeviceTraits& traits) {
    if (!env().tuned) return {};
    const TunedStore store = TunedStore::to_read();
    if (store.folder().empty()) return {};
    return store.entries(kernels.front(), traits, tuned_version(kernels));
}

}  // namespace gdn_cuda::jit
