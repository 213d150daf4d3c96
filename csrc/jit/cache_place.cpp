#include "cache_place.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "env.hpp"
#include "fork.hpp"
#include "log.hpp"
#include "store.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

struct Place {
    fs::path path;
    bool shared = false;  // in a folder where others may have prepared something for us
};

fs::path absolute_from(const char* variable) {
    const char* value = std::getenv(variable);
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path{};  // the XDG specification ignores relative ones
}

std::vector<Place> places() {
    std::vector<Place> result;
    if (!env().cache_dir.empty()) result.push_back({env().cache_dir});
    if (const fs::path xdg = absolute_from("XDG_CACHE_HOME"); !xdg.empty()) result.push_back({xdg / "gdn_cuda"});
    if (const fs::path home = absolute_from("HOME"); !home.empty()) result.push_back({home / ".cache" / "gdn_cuda"});
    std::error_code error;
    const fs::path temporary = fs::temp_directory_path(error);
    if (!error) result.push_back({temporary / fmt::format("gdn_cuda-{}", ::geteuid()), true});
    return result;
}

// Empty when what is there is ours alone.
std::string distrust(const Place& place) {
    struct stat status {};
    const int failed = place.shared ? ::lstat(place.path.c_str(), &status) : ::stat(place.path.c_str(), &status);
    if (failed != 0) return errno_text(errno);
    if (!S_ISDIR(status.st_mode)) return "not a folder";
    if (status.st_uid != ::geteuid()) return fmt::format("it belongs to user {}, not to {}", status.st_uid, ::geteuid());
    if ((status.st_mode & kOthersMayWrite) != 0)
        return fmt::format("others may write it (mode {:04o}); chmod go-w makes it usable", status.st_mode & 07777);
    return {};
}

// Empty when the place can be used; it is made when missing.
std::string refusal(const Place& place) {
    std::string reason = make_directories(place.path, 0700);
    if (reason.empty()) reason = distrust(place);
    if (!reason.empty()) return reason;
    // Asking for permission is not enough: root has every permission, even on a read-only or full disk.
    TemporaryDirectory::below(place.path / "tmp", &reason);
    return reason;
}

}  // namespace

fs::path first_place_with(const std::string& folder) {
    std::error_code ignored;
    for (const Place& place : places())
        if (fs::is_directory(place.path / folder, ignored) && distrust(place).empty()) return place.path;
    return {};
}

Store open_first_usable() {
    std::vector<std::string> refusals;
    for (const Place& place : places()) {
        const std::string reason = refusal(place);
        if (reason.empty()) {
            Store store(place.path, env().cache_max_bytes);
            store.refusals_ = std::move(refusals);
            return store;
        }
        refusals.push_back(fmt::format("{}: {}", place.path.string(), reason));
    }
    Store store(fs::path{}, 0);
    store.refusals_ = std::move(refusals);
    return store;
}

Store& Store::instance() {
    static constinit std::atomic<Store*> kept{nullptr};
    return made_once(kept, [] {
        Store opened = open_first_usable();
        if (!opened.refusals().empty())
            log_once(Level::warning,
                     fmt::format("compiled kernels are kept {} because of {}",
                                 opened.directory().empty() ? "in memory only" : "in " + opened.directory().string(),
                                 fmt::join(opened.refusals(), "; ")));
        return opened;
    });
}

}  // namespace gdn_cuda::jit
