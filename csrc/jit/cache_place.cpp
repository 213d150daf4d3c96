#include "cache_place.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <system_error>

#include "draft.hpp"
#include "env.hpp"
#include "fork.hpp"
#include "log.hpp"
#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kRoomForAnEntry = 64 << 10;

struct Place {
    fs::path path;
    bool shared = false;  // in a world-writable folder, where others may have put something
};

fs::path absolute_from(const char* variable) {
    const char* value = std::getenv(variable);
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path{};  // the XDG specification says to ignore relative paths
}

std::vector<Place> places() {
    std::vector<Place> result;
    if (!env().cache_dir.empty()) result.push_back({env().cache_dir});
    if (const fs::path xdg = absolute_from("XDG_CACHE_HOME"); !xdg.empty()) result.push_back({xdg / "gdn_cuda"});
    if (const fs::path home = absolute_from("HOME"); !home.empty()) result.push_back({home / ".cache" / "gdn_cuda"});
    std::error_code error;
    const fs::path temporary = fs::absolute(fs::temp_directory_path(error), error);
    if (!error) result.push_back({temporary / fmt::format("gdn_cuda-{}", ::geteuid()), true});
    return result;
}

// Empty if the folder is ours alone.
std::string distrust(const Place& place) {
    struct stat status {};
    if (place.shared && ::lstat(place.path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) return "not a folder";
    return distrust_of_folder(place.path, Owner::us);
}

// Empty if the folder is usable; creates it if missing.
std::string refusal(const Place& place) {
    std::string reason = distrust_of_parents(place.path);
    if (reason.empty()) reason = make_directories(place.path, 0700);
    if (reason.empty()) reason = distrust(place);
    if (reason.empty()) reason = trial_of_writing(place.path, kRoomForAnEntry);
    return reason;
}

}  // namespace

// This process's cache folders, one of which is in use (written).
class CachePlaces {
  public:
    // The first usable folder from index `first` on, or memory only.
    Store& open_from(std::size_t first) {
        std::vector<std::string> refusals;
        const std::vector<Place>& all = known_places();
        for (std::size_t i = first; i < all.size(); ++i) {
            if (const std::string reason = refusal(all[i]); !reason.empty()) {
                refusals.push_back(fmt::format("{}: {}", all[i].path.string(), reason));
                continue;
            }
            return add(Store(all[i].path, env().cache_max_bytes), i, std::move(refusals));
        }
        return add(Store(fs::path{}, 0), all.size(), std::move(refusals));
    }

    Store& current() {
        if (current_ == nullptr) {
            current_ = &open_from(0);
            if (!current_->refusals_.empty())
                log_once(Level::warning,
                         fmt::format("compiled kernels are kept {} because of {}",
                                     current_->directory_.empty() ? "in memory only" : "in " + current_->directory_.string(),
                                     fmt::join(current_->refusals_, "; ")));
        }
        return *current_;
    }

    Store& after(const Store& store) {
        std::size_t i = 0;
        while (&opened_[i].store != &store) ++i;
        for (std::size_t later = i + 1; later < opened_.size(); ++later)
            if (opened_[later].place > opened_[i].place) return opened_[later].store;
        return open_from(opened_[i].place + 1);
    }

    void use(Store& store, const std::vector<std::string>& because_of) {
        if (current_ == &store) return;  // another thread has switched already
        store.refusals_.insert(store.refusals_.begin(), because_of.begin(), because_of.end());
        current_ = &store;
    }

    // Searches the folders preferred to that of `store`.
    std::optional<Cubin> find_before(const Store& store, const std::string& name, const std::string& key) {
        for (const Place& place : known_places()) {
            if (place.path == store.directory_) break;
            if (distrust(place).empty())
                if (auto cubin = Store(place.path, 0, Store::Access::read_only).load(name, key)) return cubin;
        }
        return std::nullopt;
    }

    Store take_first() && { return std::move(open_from(0)); }

  private:
    struct Opened {
        Store store;
        std::size_t place;
    };

    Store& add(Store store, std::size_t place, std::vector<std::string> refusals) {
        store.refusals_ = std::move(refusals);
        return opened_.emplace_back(Opened{std::move(store), place}).store;
    }

    const std::vector<Place>& known_places() {
        if (places_.empty()) places_ = places();  // at first use, since this reads the environment
        return places_;
    }

    std::vector<Place> places_;
    std::deque<Opened> opened_;  // stable addresses: callers hold references
    Store* current_ = nullptr;
};

namespace {
Guarded<CachePlaces> cache_places;
}  // namespace

Store open_first_usable() {
    return CachePlaces().take_first();
}

Store& Store::instance() {
    return cache_places.lock()->current();
}

std::optional<Cubin> find_cached(const std::string& name, const std::string& key) {
    const Store& store = Store::instance();
    if (auto cubin = store.load(name, key)) return cubin;
    return store.refusals().empty() ? std::nullopt : cache_places.lock()->find_before(store, name, key);
}

bool keep_cached(const std::string& name, const std::string& key, const Cubin& cubin) {
    std::vector<std::string> refusals;
    for (Store* store = &Store::instance(); !store->directory().empty(); store = &cache_places.lock()->after(*store)) {
        const auto refusal = store->publish(name, key, cubin);
        if (!refusal) {
            if (refusals.empty()) return true;
            cache_places.lock()->use(*store, refusals);
            log_once(Level::warning, fmt::format("compiled kernels cannot be kept in {}; from now on they are kept in {}",
                                                 fmt::join(refusals, "; nor in "), store->directory().string()));
            return true;
        }
        refusals.push_back(fmt::format("{}: {}", store->directory().string(), refusal->reason));
        if (!refusal->another_place) break;
    }
    if (!refusals.empty())
        log_once(Level::warning,
                 fmt::format("compiled kernels cannot be kept in {}; they stay in memory", fmt::join(refusals, "; nor in ")));
    return false;
}

fs::path first_place_with(const std::string& folder) {
    for (const Place& place : places())
        if (is_own_folder(place.path / folder) && distrust(place).empty()) return place.path;
    return {};
}

}  // namespace gdn_cuda::jit
