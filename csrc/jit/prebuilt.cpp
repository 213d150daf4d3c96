#include "prebuilt.hpp"

#include <sys/stat.h>

#include <utility>

#include "env.hpp"
#include "library.hpp"
#include "log.hpp"
#include "store.hpp"
#include "text.hpp"
#include "trust.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;

std::vector<PrebuiltFolder> prebuilt_folders() {
    std::vector<PrebuiltFolder> folders;
    if (const fs::path& set = env().prebuilt_dir; !set.empty())
        folders.push_back({set, "GDN_JIT_PREBUILT_DIR=" + set.string(), distrust_of_folder(set, Owner::us_or_root), false});
    const fs::path library = this_library();
    struct stat status {};
    if (fs::path beside = library.parent_path() / "prebuilt";
        !library.empty() && ::stat(beside.c_str(), &status) == 0 && S_ISDIR(status.st_mode))
        folders.push_back({beside, beside.string(), distrust_of_installed(status), true});
    return folders;
}

std::optional<Cubin> find_prebuilt(const std::string& name, const std::string& key) {
    for (const PrebuiltFolder& folder : prebuilt_folders()) {
        if (!folder.refusal.empty()) {
            log_once(Level::warning, fmt::format("{}: {}; it is passed over", folder.label, folder.refusal));
            continue;
        }
        const auto access = folder.installed ? Store::Access::installed : Store::Access::read_only;
        if (auto cubin = Store(folder.path, 0, access).load(name, key)) return cubin;
    }
    return std::nullopt;
}

}  // namespace gdn_cuda::jit
