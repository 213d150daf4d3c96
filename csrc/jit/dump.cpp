#include "dump.hpp"

#include <cstdlib>
#include <sstream>
#include <system_error>
#include <vector>

#include "env.hpp"
#include "log.hpp"
#include "process.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

fs::path find_nvdisasm(const Toolchain& tools) {
    std::vector<fs::path> folders;
    if (!env().cuda_home.empty()) folders.push_back(env().cuda_home / "bin");
    if (!tools.nvcc.empty()) folders.push_back(tools.nvcc.parent_path());
    // The toolkit or the wheels' nvidia/cu13; headers and NVRTC may come from different ones.
    folders.push_back(tools.cuda_include.parent_path() / "bin");
    folders.push_back(tools.nvrtc.parent_path().parent_path() / "bin");
    std::istringstream on_path(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
    for (std::string folder; std::getline(on_path, folder, ':');)
        if (!folder.empty()) folders.emplace_back(folder);
    folders.emplace_back("/usr/local/cuda/bin");
    std::error_code ignored;
    for (const fs::path& folder : folders)
        if (fs::exists(folder / "nvdisasm", ignored)) return folder / "nvdisasm";
    return {};
}

}  // namespace

bool dumped(const Store& store, const KernelSource& source, const std::string& key) {
    std::error_code ignored;
    return fs::exists(store.entry_path(source.id(), key).replace_extension(".ptx"), ignored);
}

void dump(Store& store, const KernelSource& source, const std::string& key, const Compiled& compiled, const Toolchain& tools) {
    const auto keep = [&](const char* suffix, const std::string& text) {
        if (const std::string reason = store.write_beside(source.id(), key, suffix, text); !reason.empty())
            log_once(Level::warning, fmt::format("GDN_JIT_DUMP: {}: no {}: {}", source.id(), suffix, reason));
    };
    keep(".cu", source.code);
    keep(".ptx", compiled.ptx);
    const fs::path nvdisasm = find_nvdisasm(tools);
    if (nvdisasm.empty())
        return log_once(Level::warning,
                        "GDN_JIT_DUMP: no SASS: nvdisasm is neither on PATH nor beside CUDA; pip install nvidia-cuda-nvdisasm");
    const ProcessResult sass = run_process({nvdisasm.string(), store.entry_path(source.id(), key).string()});
    if (sass.started && sass.exit_code == 0)
        keep(".sass", sass.output);
    else
        log_once(Level::warning, fmt::format("GDN_JIT_DUMP: {}: no SASS: {}: {}", source.id(), nvdisasm.string(), sass.output));
}

}  // namespace gdn_cuda::jit
