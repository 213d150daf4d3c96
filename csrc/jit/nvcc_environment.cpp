#include "nvcc_environment.hpp"

#include <cstdlib>
#include <sstream>
#include <system_error>

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

std::string value_of(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

}  // namespace

std::string nvcc_settings_of_environment() {
    std::string result;
    for (const char* name : kNvccKeyVariables)
        if (const std::string value = value_of(name); !value.empty())
            result += (result.empty() ? "" : " ") + (name + ("=" + value));
    return result;
}

fs::path nvcc_host_compiler() {
    const fs::path chosen = value_of("NVCC_CCBIN");
    std::error_code ignored;
    if (fs::is_directory(chosen, ignored)) return chosen / "gcc";
    if (chosen.has_parent_path()) return chosen;
    std::istringstream folders(value_of("PATH"));
    for (std::string folder; std::getline(folders, folder, ':');)
        if (const fs::path found = fs::path(folder) / (chosen.empty() ? "gcc" : chosen);
            !folder.empty() && fs::is_regular_file(found, ignored))
            return found;
    return {};
}

}  // namespace gdn_cuda::jit
