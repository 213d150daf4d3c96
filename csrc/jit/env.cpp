#include "env.hpp"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fork.hpp"
#include "log.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::array kVariables = std::to_array<Variable>({
    {"GDN_JIT_CACHE_DIR", "", "where compiled kernels are kept; default: XDG_CACHE_HOME/gdn_cuda, else ~/.cache/gdn_cuda"},
    {"GDN_JIT_CACHE_MAX_BYTES", "2G", "size of the cache before the least recently used go: bytes, or with K, M or G"},
    {"GDN_JIT_PREBUILT_DIR", "", "read-only folder of kernels compiled ahead of time, looked at first"},
    {"GDN_JIT_DISABLE", "0", "1: never compile; a kernel that is not there already is an error"},
    {"GDN_JIT_USE_NVCC", "0", "1: compile with nvcc instead of NVRTC"},
    {"GDN_JIT_NVCC", "", "the nvcc to use; default: found in the CUDA home, wheels and PATH"},
    {"GDN_JIT_DUMP", "0", "1: keep source, PTX and SASS beside each compiled kernel"},
    {"GDN_JIT_LINEINFO", "0", "1: line numbers in compiled kernels, for profilers"},
    {"GDN_JIT_PRINT", "0", "1: one line on standard error for each compile"},
    {"GDN_TUNED", "1", "0: ignore what `python -m gdn_cuda tune` stored, and leave every choice to the heuristics"},
    {"GDN_NVTX", "0", "1: an NVTX range around every operator, for profilers"},
    {"GDN_LOG_LEVEL", "warning", "debug, info, warning, error or off"},
    {"GDN_CUDA_HOME", "", "CUDA to use first: a folder with include/ and lib/ or lib64/"},
    {"GDN_CUTLASS_INCLUDE", "", "CUTLASS headers to use first: the folder that holds cutlass/ and cute/"},
    {"GDN_CCCL_INCLUDE", "", "libcu++ headers for CUTLASS to use first: the folder that holds cccl/ or cuda/std/"},
});

std::string_view get(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string_view{} : std::string_view(value);
}

std::string lower(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
    return result;
}

[[noreturn]] void malformed(const char* name, std::string_view expected, std::string_view got) {
    throw Error(fmt::format("{}: expected {}, got \"{}\"", name, expected, got));
}

bool boolean(const char* name, bool otherwise = false) {
    const std::string value = lower(get(name));
    if (value.empty()) return otherwise;
    for (const char* yes : {"1", "true", "on", "yes"})
        if (value == yes) return true;
    for (const char* no : {"0", "false", "off", "no"})
        if (value == no) return false;
    malformed(name, "0 or 1 (also true/false, on/off, yes/no)", get(name));
}

std::uint64_t bytes(const char* name, std::uint64_t otherwise) {
    const std::string_view text = get(name);
    if (text.empty()) return otherwise;
    std::uint64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string suffix = lower({rest, static_cast<std::size_t>(text.data() + text.size() - rest)});
    const int shift = suffix.empty() ? 0 : suffix == "k" ? 10 : suffix == "m" ? 20 : suffix == "g" ? 30 : -1;
    if (error != std::errc{} || shift < 0 || value > std::numeric_limits<std::uint64_t>::max() >> shift)
        malformed(name, "a number of bytes, alone or followed by K, M or G", text);
    return value << shift;
}

int level(const char* name) {
    constexpr std::pair<const char*, Level> levels[] = {{"debug", Level::debug},     {"info", Level::info},
                                                        {"warning", Level::warning}, {"error", Level::error},
                                                        {"off", Level::off},         {"", Level::warning}};
    const std::string value = lower(get(name));
    for (const auto& [word, level] : levels)
        if (value == word) return static_cast<int>(level);
    malformed(name, "debug, info, warning, error or off", get(name));
}

// The home of the user of this name; empty: of this process's user.
fs::path home_of(const std::string& user) {
    if (const std::string_view home = get("HOME"); user.empty() && !home.empty()) return home;
    std::array<char, 4096> texts;
    struct passwd entry {
    }, *found = nullptr;
    if (user.empty())
        ::getpwuid_r(::geteuid(), &entry, texts.data(), texts.size(), &found);
    else
        ::getpwnam_r(user.c_str(), &entry, texts.data(), texts.size(), &found);
    return found == nullptr || found->pw_dir == nullptr ? fs::path{} : fs::path(found->pw_dir);
}

// Absolute. A leading ~ or ~user is a home as in a shell, which does not replace it in quotes, files of variables or
// containers.
fs::path absolute_path(const char* name) {
    const std::string_view text = get(name);
    if (text.empty()) return {};
    if (!text.starts_with('~')) return fs::absolute(text).lexically_normal();
    const std::size_t end = std::min(text.find('/'), text.size());
    const fs::path home = home_of(std::string(text.substr(1, end - 1)));
    if (!home.is_absolute())
        malformed(name, "a path; ~ and ~user at its start are a home that exists (write ./~ for a folder of that name)", text);
    return fs::path(home.string() + std::string(text.substr(end))).lexically_normal();
}

fs::path existing(const char* name, bool folder) {
    fs::path path = absolute_path(name);
    if (path.empty()) return path;
    std::error_code error;
    if (folder ? !fs::is_directory(path, error) : !fs::is_regular_file(path, error)) {
        const char* access = error == std::errc::permission_denied ? "this user may reach (permission denied)" : "exists";
        malformed(name, fmt::format("a {} that {}", folder ? "folder" : "file", access), get(name));
    }
    return path;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

// A misspelt name (GDN_JIT_CACHEDIR for GDN_JIT_CACHE_DIR) would be ignored silently. Variables of tests and builds are exempt.
void warn_of_unknown() {
    const std::vector<Variable> known = variables();
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry, name = text.substr(0, text.find('='));
        if (!name.starts_with("GDN_") || name.starts_with("GDN_TEST_") || name == "GDN_SANITIZE") continue;
        const auto nearer = [name](const Variable& a, const Variable& b) {
            return edit_distance(name, a.name) < edit_distance(name, b.name);
        };
        const Variable& nearest = *std::ranges::min_element(known, nearer);
        if (name == nearest.name) continue;
        log_once(Level::warning,
                 readable(fmt::format("{}: gdn_cuda has no such variable; the nearest is {}", name, nearest.name)));
    }
}

}  // namespace

std::vector<Variable> variables() {
    std::vector<Variable> all(kVariables.begin(), kVariables.end());
    const auto name = [](const Variable& variable) { return std::string_view(variable.name); };
    // Once each: a second library may be built with the headers that declare them.
    for (const Setting* each = Setting::first(); each != nullptr; each = each->next())
        if (std::ranges::find(all, name(each->variable()), name) == all.end()) all.push_back(each->variable());
    std::ranges::sort(all.begin() + kVariables.size(), all.end(), {}, name);
    return all;
}

namespace {
constinit std::atomic<const Setting*> first_setting{nullptr};  // before the constructors of static objects
}

Setting::Setting(const Variable& variable, const char* expected, Parse parse)
    : variable_(variable), expected_(expected), parse_(parse), next_(first_setting.load()) {
    first_setting.store(this);  // no race: static objects of a library are constructed by one thread
}

const Setting* Setting::first() {
    return first_setting.load();
}

void Setting::read() const {
    const std::string_view text = get(variable_.name);
    const std::optional<int> value = parse_(lower(text.empty() ? variable_.default_text : text));
    if (!value) malformed(variable_.name, expected_, text);
    value_.store(*value, std::memory_order_relaxed);
}

Env parse_env() {
    for (const Setting* each = Setting::first(); each != nullptr; each = each->next()) each->read();
    return {
        .cache_dir = absolute_path("GDN_JIT_CACHE_DIR"),
        .cache_max_bytes = bytes("GDN_JIT_CACHE_MAX_BYTES", std::uint64_t{2} << 30),
        .prebuilt_dir = existing("GDN_JIT_PREBUILT_DIR", true),
        .disable = boolean("GDN_JIT_DISABLE"),
        .use_nvcc = boolean("GDN_JIT_USE_NVCC"),
        .nvcc = existing("GDN_JIT_NVCC", false),
        .dump = boolean("GDN_JIT_DUMP"),
        .lineinfo = boolean("GDN_JIT_LINEINFO"),
        .print = boolean("GDN_JIT_PRINT"),
        .tuned = boolean("GDN_TUNED", true),
        .nvtx = boolean("GDN_NVTX"),
        .log_level = level("GDN_LOG_LEVEL"),
        .cuda_home = existing("GDN_CUDA_HOME", true),
        .cutlass_include = existing("GDN_CUTLASS_INCLUDE", true),
        .cccl_include = existing("GDN_CCCL_INCLUDE", true),
    };
}

const Env& env() {
    static constinit std::atomic<const Env*> snapshot{nullptr};
    if (const Env* known = snapshot.load(std::memory_order_acquire)) return *known;
    const Env& parsed = made_once(snapshot, parse_env);  // a throw leaves it unset, so the next caller gets the error too
    warn_of_unknown();                                   // after that, since log() reads its level from env()
    return parsed;
}

std::optional<int> auto_or_number(const std::string& text, int most) {
    if (text == "auto") return 0;
    int number = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || rest != text.data() + text.size() || number < 1 || number > most) return std::nullopt;
    return number;
}

}  // namespace gdn_cuda::jit
