#include "own_headers.hpp"

#include <sys/stat.h>

#include <deque>
#include <set>
#include <system_error>
#include <utility>

#include "sha256.hpp"
#include "tree.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMissing = "missing";

// Where an include may resolve to, in search order: the name relative to the include folder, and the path.
struct Candidate {
    std::string name;
    fs::path path;
};

std::string normal(const fs::path& name) {
    return name.lexically_normal().string();
}

// Whether to look from the include folder: ours by name, or a relative or absolute path.
bool is_ours(std::string_view name) {
    return name.starts_with("gdn_cuda/") || name.starts_with("../") || name.starts_with('/');
}

}  // namespace

OwnHeaders::OwnHeaders(fs::path include_folder, fs::path memo)
    : include_folder_(std::move(include_folder)),
      memo_path_(std::move(memo)),
      started_(nanoseconds_now()),
      memo_(FileMemo::read(memo_path_)) {}

HeaderSet OwnHeaders::of(std::string_view code) {
    // A file whose includes are still to be followed.
    struct Visit {
        fs::path name_folder, folder;  // empty for the code itself, which is in no folder
        const Includes* includes;
    };
    HeaderSet found;
    std::set<std::string> seen;  // paths, and names of missing files
    std::set<Include> external;
    const Includes code_includes = includes_of(code);
    std::deque<Visit> visits{{{}, {}, &code_includes}};
    while (!visits.empty()) {
        const Visit visit = std::move(visits.front());
        visits.pop_front();
        found.unclear |= visit.includes->unclear;
        for (const Include& include : visit.includes->listed) {
            std::vector<Candidate> candidates;
            if (include.quoted && !visit.folder.empty())
                candidates.push_back({normal(visit.name_folder / include.name), visit.folder / include.name});
            const std::string name = normal(include.name);
            if (is_ours(name)) candidates.push_back({name, include_folder_ / include.name});
            bool is_own = is_ours(name);
            for (const Candidate& candidate : candidates) {
                const File& file = this->file(candidate.path);
                const bool is_there = !file.digest.empty();
                if (seen.insert(is_there ? file.path : candidate.name).second) {
                    found.headers.push_back({candidate.name, is_there ? file.digest : kMissing});
                    if (is_there) visits.push_back({fs::path(candidate.name).parent_path(), file.folder, &file.includes});
                }
                is_own |= is_there;
                if (is_there) break;
            }
            if (!is_own) external.insert(include);
        }
    }
    found.external.assign(external.begin(), external.end());
    if (learned_) write_memo();
    return found;
}

std::string OwnHeaders::canonical(const std::string& folder) {
    const auto known = folders_.find(folder);
    if (known != folders_.end()) return known->second;
    std::error_code missing;
    return folders_[folder] = fs::canonical(folder, missing).string();
}

const OwnHeaders::File& OwnHeaders::file(const fs::path& path) {
    const std::string folder = canonical(path.parent_path().string());
    const std::string name = folder.empty() ? path.string() : folder + '/' + path.filename().string();
    if (const auto known = files_.find(name); known != files_.end()) return known->second;
    File file{name, folder, {}, {}};
    if (!folder.empty()) read(file);
    return files_.emplace(name, std::move(file)).first->second;
}

void OwnHeaders::read(File& file) {
    struct stat status {};
    if (::stat(file.path.c_str(), &status) != 0 || S_ISDIR(status.st_mode)) {  // compilers skip folders
        learned_ |= memo_.entries.erase(file.path) > 0;
        return;
    }
    const FileStamp stamp = FileStamp::of(status);
    std::string value;
    if (const std::string* known = memo_.find(file.path, stamp)) {
        value = *known;
    } else {
        const std::string text = read_header(file.path);
        value = sha256_hex(text) + to_memo(includes_of(text));
        if (stamp.settled(started_)) {
            memo_.entries.insert_or_assign(file.path, FileMemo::Entry{stamp, value});
            learned_ = true;
        }
    }
    file.digest = value.substr(0, kDigestLength);
    file.includes = from_memo(std::string_view(value).substr(kDigestLength));
}

void OwnHeaders::write_memo() {
    memo_.write(memo_path_);
    learned_ = false;
}

}  // namespace gdn_cuda::jit
