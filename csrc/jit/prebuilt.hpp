// Kernels that were compiled ahead of time with `compile --out`, in folders that are only read: GDN_JIT_PREBUILT_DIR, and
// `prebuilt` beside this library, which a wheel, an image or a kernel repository may bring along with it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "source.hpp"

namespace gdn_cuda::jit {

struct PrebuiltFolder {
    std::filesystem::path path;
    std::string label;    // for messages
    std::string refusal;  // why nothing is read from it; empty if it is read
    bool installed = false;
};
// Those that are set or exist, in the order in which they are searched.
std::vector<PrebuiltFolder> prebuilt_folders();

// Empty if no folder has the entry. Logs once why a folder is passed over.
std::optional<Cubin> find_prebuilt(const std::string& name, const std::string& key);

}  // namespace gdn_cuda::jit
