#include "external_headers.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "key.hpp"
#include "sha256.hpp"
#include "tree.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMissing = "missing";
constexpr const char* kResult = "";  // the memo's entry of the digest; no file has this name
constexpr const char* kUnclear = "unclear";

std::vector<std::string> strings(const std::vector<fs::path>& paths) {
    std::vector<std::string> result;
    for (const fs::path& path : paths) result.push_back(path.string());
    return result;
}

bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

// Calls `visit` with each word of a text and with what stands between two words.
template <class Visitor>
void visit_words(std::string_view text, Visitor&& visit) {
    while (!text.empty()) {
        const bool word = is_word(text.front());
        const auto end = std::ranges::find_if(text, [&](char c) { return is_word(c) != word; });
        const std::size_t length = static_cast<std::size_t>(end - text.begin());
        visit(text.substr(0, length), word);
        text.remove_prefix(length);
    }
}

}  // namespace

// What one list of includes leads to.
class ExternalHeaders::Closure {
  public:
    explicit Closure(ExternalHeaders& all) : all_(all) {}

    // False if an include cannot be determined.
    bool follow(const std::vector<Include>& includes) {
        for (const Include& include : includes) visits_.push_back({include, {}, {}});
        while (!visits_.empty()) {
            const Visit visit = std::move(visits_.front());
            visits_.pop_front();
            if (!resolve(visit)) return false;
        }
        // False for a macro that no header defines, for one in whose result others may be replaced, and where a macro asks
        // __has_include of others.
        return std::ranges::all_of(used_, [&](const auto& used) { return defined_.contains(used.first.macro); }) &&
               std::ranges::none_of(words_, [&](const std::string& word) { return defined_.contains(word); }) &&
               std::ranges::none_of(queries_, [&](const std::string& query) { return called_by_word_.contains(query); });
    }

    std::string digest() { return key_.hex(); }
    std::set<std::string> places;  // where files are, and where there are none

  private:
    struct Visit {
        Include include;
        std::string folder, name_folder;  // the including header's; empty for the code itself
    };

    bool resolve(const Visit& visit) {
        const std::string& name = visit.include.name;
        if (visit.include.quoted && !visit.folder.empty())
            if (const auto found = look(visit.folder, name))
                return enter((fs::path(visit.name_folder) / name).lexically_normal(), *found);
        if (name.starts_with('/')) {
            if (const auto found = look("", name)) return enter(name, *found);
        } else {
            for (const std::string& folder : all_.folders_)
                if (const auto found = look(folder, name)) return enter(name, *found);
        }
        if (missing_.insert(name).second) key_.add(name, kMissing);
        return true;
    }

    // The path, if a file is there.
    std::optional<std::string> look(const std::string& folder, const std::string& name) {
        const std::string path = name.starts_with('/') ? name : folder + '/' + name;
        if (const auto known = found_.find(path); known != found_.end())
            return known->second ? std::optional(path) : std::nullopt;
        std::error_code ignored;
        const bool is_file = all_.stamp(path) != FileStamp{} && !fs::is_directory(path, ignored);  // compilers skip folders
        found_.emplace(path, is_file);
        std::string place = path;
        // The first folder on the way that does not exist stands for all that it could hold.
        for (std::string parent = parent_of(path); !is_file && !parent.empty() && all_.stamp(parent) == FileStamp{};
             parent = parent_of(parent))
            place = parent;
        places.insert(std::move(place));
        return is_file ? std::optional(path) : std::nullopt;
    }

    static std::string parent_of(const std::string& path) { return path.substr(0, std::min(path.rfind('/'), path.size())); }

    bool enter(const fs::path& name, const std::string& path) {
        const std::string folder = parent_of(path);
        if (!seen_.insert(all_.canonical(folder) + path.substr(folder.size())).second) return true;
        const File& file = all_.read(path);
        key_.add(name.string(), file.digest);
        if (file.includes.unclear) return false;
        const std::string name_folder = name.parent_path().string();
        for (const Include& include : file.includes.listed) visits_.push_back({include, folder, name_folder});
        for (const Macro& macro : file.macros.defined) {
            defined_[macro.name].push_back(macro);
            for (const auto& [used, from] : used_)
                if (used.macro == macro.name)
                    for (const auto& [in, in_name] : from)
                        if (!expand(macro, used, in, in_name)) return false;
        }
        queries_.insert(file.macros.queries.begin(), file.macros.queries.end());
        called_by_word_.insert(file.macros.called_by_word.begin(), file.macros.called_by_word.end());
        for (const MacroInclude& used : file.macros.used) {
            used_[used].emplace(folder, name_folder);
            if (const auto known = defined_.find(used.macro); known != defined_.end())
                for (const Macro& macro : known->second)
                    if (!expand(macro, used, folder, name_folder)) return false;
        }
        return true;
    }

    bool expand(const Macro& macro, const MacroInclude& used, const std::string& folder, const std::string& name_folder) {
        if (!macro.include) return false;
        Include include{{}, macro.include->quoted};
        if (include.quoted) {
            include.name = macro.include->name;  // a literal, in which nothing is replaced
        } else {
            visit_words(macro.include->name, [&](std::string_view part, bool word) {
                const bool is_parameter = word && part == macro.parameter;
                if (word && !is_parameter) words_.insert(std::string(part));
                include.name += is_parameter ? std::string_view(used.argument) : part;
            });
            visit_words(used.argument, [&](std::string_view part, bool word) {
                if (word) words_.insert(std::string(part));
            });
        }
        visits_.push_back({std::move(include), folder, name_folder});
        return true;
    }

    ExternalHeaders& all_;
    std::deque<Visit> visits_;
    std::unordered_map<std::string, bool> found_;
    std::unordered_set<std::string> seen_, missing_, words_, queries_, called_by_word_;
    std::unordered_map<std::string, std::vector<Macro>> defined_;
    std::map<MacroInclude, std::set<std::pair<std::string, std::string>>> used_;  // from which folders
    KeyBuilder key_;
};

ExternalHeaders::ExternalHeaders(std::vector<fs::path> folders) : folders_(strings(folders)), started_(nanoseconds_now()) {}

std::string ExternalHeaders::digest(const std::vector<Include>& includes, const fs::path& memo) {
    if (const FileMemo known = FileMemo::read(memo); still(known)) {
        const std::string& result = known.entries.find(kResult)->second.value;
        return result == kUnclear ? std::string() : result;
    }
    Closure closure(*this);
    bool clear = false;
    try {
        clear = closure.follow(includes);
    } catch (...) {  // a later call looks again
        stamps_.clear();
        throw;
    }
    const std::string result = clear ? closure.digest() : kUnclear;
    FileMemo fresh;
    fresh.entries.emplace(kResult, FileMemo::Entry{{}, result});
    bool settled = true;
    for (const std::string& place : closure.places) {
        const FileStamp found = stamp(place);
        settled = settled && found.settled(started_);
        fresh.entries.emplace(place, FileMemo::Entry{found, {}});
    }
    if (settled) fresh.write(memo);
    return clear ? result : std::string();
}

bool ExternalHeaders::still(const FileMemo& memo) {
    return memo.entries.contains(kResult) && std::ranges::all_of(memo.entries, [&](const auto& entry) {
               return entry.first == kResult || stamp(entry.first) == entry.second.stamp;
           });
}

FileStamp ExternalHeaders::stamp(const std::string& path) {
    const auto [known, is_new] = stamps_.try_emplace(path);
    struct stat status {};
    if (is_new && ::stat(path.c_str(), &status) == 0) known->second = FileStamp::of(status);
    return known->second;
}

const ExternalHeaders::File& ExternalHeaders::read(const std::string& path) {
    if (const auto known = files_.find(path); known != files_.end()) return known->second;
    const std::string text = read_header(path);
    File file{sha256_hex(text), {}, {}};
    file.includes = includes_of(text, file.macros);
    return files_.emplace(path, std::move(file)).first->second;
}

std::string ExternalHeaders::canonical(const std::string& folder) {
    const auto known = canonical_.find(folder);
    if (known != canonical_.end()) return known->second;
    std::error_code missing;
    return canonical_[folder] = fs::canonical(folder, missing).string();
}

}  // namespace gdn_cuda::jit
