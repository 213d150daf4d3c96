#include "toolchain.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <system_error>

#include "env.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "library.hpp"
#include "nvrtc.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

// Subfolders of a CUDA home, for all layouts: toolkit, conda, CUDA 13 wheels, CUDA 12 wheels, distribution.
constexpr const char* kIncludeFolders[] = {"include", "cuda_runtime/include", "targets/x86_64-linux/include"};
constexpr const char* kCcclFolders[] = {"include/cccl", "cuda_cccl/include", "targets/x86_64-linux/include/cccl", "include"};
constexpr const char* kLibraryFolders[] = {"lib64", "lib", "cuda_nvrtc/lib", "targets/x86_64-linux/lib",
                                           "lib/x86_64-linux-gnu"};
constexpr const char* kNvccFiles[] = {"bin/nvcc", "cuda_nvcc/bin/nvcc"};

bool is_there(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
}

// The first folder in `path`, inclusive, that this user may not search; empty if none.
fs::path closed_folder(const fs::path& path) {
    fs::path folder;
    for (const fs::path& part : path) {
        folder /= part;
        if (::faccessat(AT_FDCWD, folder.c_str(), X_OK, AT_EACCESS) != 0)
            return errno == EACCES && is_folder(folder) ? folder : fs::path{};
    }
    return {};
}

// Searches places in order until the part is found, and records where it was not.
class Search {
  public:
    Search(Part part, std::string what, std::string fix, bool required) {
        finding_.part = part;
        finding_.what = std::move(what);
        finding_.fix = std::move(fix);
        finding_.required = required;
    }

    // Skips folders that contain the part if `why_not` returns a reason.
    Search& unless(std::string (*why_not)(const fs::path&)) {
        refusal_ = why_not;
        return *this;
    }
    // Searches the folders `below` `root` ("" is `root` itself) for `marker`.
    template <class Folders>
    Search& folder(const std::string& label, const fs::path& root, const Folders& below, const char* marker) {
        if (root.empty() || finding_.found) return *this;
        std::string looked_for;
        bool refused = false;
        for (const char* name : below) {
            const fs::path candidate = *name == '\0' ? root : root / name;
            if (look(candidate / marker)) {
                const std::string reason = refusal_ == nullptr ? "" : refusal_(candidate);
                if (reason.empty()) return found(candidate);
                missed(label, candidate, reason);
                refused = true;
            }
            looked_for += (looked_for.empty() ? "" : " or ") + (fs::path(name) / marker).string();
        }
        return refused ? *this : missed(label, root, fmt::format("no {}", looked_for));
    }
    Search& folder(const std::string& label, const fs::path& root, const char* marker) {
        constexpr const char* itself[] = {""};
        return folder(label, root, itself, marker);
    }
    Search& file(const std::string& label, const fs::path& path) {
        if (path.empty() || finding_.found) return *this;
        return look(path) ? found(path) : missed(label, path, "no such file");
    }
    Search& nvrtc_below(const std::string& label, const fs::path& home) {
        if (home.empty() || finding_.found) return *this;
        for (const char* name : kLibraryFolders) {
            if (const fs::path library = newest_nvrtc(home / name); !library.empty()) return found(library);
            note_if_closed(home / name);
        }
        return missed(label, home, fmt::format("no libnvrtc.so.* in {}", fmt::join(kLibraryFolders, ", ")));
    }
    Search& nvcc_below(const std::string& label, const fs::path& home) {
        if (home.empty() || finding_.found) return *this;
        for (const char* name : kNvccFiles)
            if (look(home / name)) return found(home / name);
        return missed(label, home, "no bin/nvcc");
    }
    Search& note(std::string text) {
        if (!finding_.found && !text.empty()) finding_.tried.push_back(std::move(text));
        return *this;
    }

    fs::path finish(std::vector<Finding>& findings) {
        findings.push_back(finding_);
        return finding_.found.value_or(fs::path{});
    }

  private:
    Search& found(const fs::path& path) {
        finding_.found = path.lexically_normal();
        return *this;
    }
    bool look(const fs::path& path) {
        if (is_there(path)) return true;
        note_if_closed(path);
        return false;
    }
    void note_if_closed(const fs::path& path) {
        if (closed_.empty()) closed_ = closed_folder(path);
    }
    Search& missed(const std::string& label, const fs::path& root, const std::string& why) {
        finding_.tried.push_back(
            fmt::format("{} {}: {}", label, root.string(),
                        closed_.empty() ? why : fmt::format("permission denied: {} may not be searched", closed_.string())));
        closed_.clear();
        return *this;
    }

    Finding finding_;
    std::string (*refusal_)(const fs::path&) = nullptr;
    fs::path closed_;  // a folder without search permission in the current place
};

struct Home {
    std::string label;
    fs::path path;
};

struct Places {
    const SearchPaths &from_init, &from_hook;
    std::vector<Home> named;      // by the user
    std::vector<Home> installed;  // around the headers that the hook found
    Home usual{"the usual place", "/usr/local/cuda"};

    Places(const SearchPaths& init, const SearchPaths& hook) : from_init(init), from_hook(hook) {
        named = {{"init(cuda_home)", init.cuda_home}, {"GDN_CUDA_HOME", env().cuda_home}};
        installed = {{"CUDA home found", hook.cuda_home}};
        if (hook.cuda_include.empty()) return;
        const fs::path parent = hook.cuda_include.parent_path();  // nvidia/cu13, or nvidia/cuda_runtime
        installed.push_back({"beside the headers", parent});
        installed.push_back({"beside the headers", parent.parent_path()});
    }

    // Calls `exact` with explicitly named paths and `within` with CUDA homes, in search order; both ignore empty paths and
    // every call after a match.
    template <class Exact, class Within>
    void visit(fs::path SearchPaths::*part, Exact exact, Within within) const {
        exact("init()", from_init.*part);
        for (const Home& home : named) within(home.label, home.path);
        exact("wheels", from_hook.*part);
        for (const Home& home : installed) within(home.label, home.path);
        within(usual.label, usual.path);
    }
};

fs::path find_nvcc(const Places& places, std::vector<Finding>& findings) {
    Search search(Part::nvcc, "nvcc",
                  "install the CUDA toolkit (or pip install nvidia-cuda-nvcc) and set GDN_JIT_NVCC or GDN_CUDA_HOME",
                  env().use_nvcc);
    search.file("GDN_JIT_NVCC", env().nvcc);
    places.visit(
        &SearchPaths::nvcc, [&](const auto& label, const fs::path& path) { search.file(label, path); },
        [&](const auto& label, const fs::path& home) { search.nvcc_below(label, home); });
    std::istringstream folders(std::getenv("PATH") == nullptr ? "" : std::getenv("PATH"));
    for (std::string folder; std::getline(folders, folder, ':');)
        if (!folder.empty() && is_there(fs::path(folder) / "nvcc"))
            search.file("PATH", fs::absolute(fs::path(folder) / "nvcc"));
    search.note("PATH: no nvcc");
    return search.finish(findings);
}

fs::path find_cuda_headers(const Places& places, const fs::path& nvcc, std::vector<Finding>& findings) {
    constexpr const char* marker = "cuda_bf16.h";
    Search search(Part::cuda_headers, "CUDA headers (cuda_bf16.h)",
                  "pip install nvidia-cuda-runtime (CUDA 12: nvidia-cuda-runtime-cu12), or set GDN_CUDA_HOME", true);
    // nvcc always reads its own headers; adding another version's would mix versions.
    if (env().use_nvcc && !nvcc.empty()) {
        std::error_code ignored;
        const fs::path real = fs::canonical(nvcc, ignored);
        if (!real.empty()) search.folder("beside nvcc", real.parent_path().parent_path(), kIncludeFolders, marker);
    }
    places.visit(
        &SearchPaths::cuda_include, [&](const auto& label, const fs::path& path) { search.folder(label, path, marker); },
        [&](const auto& label, const fs::path& home) { search.folder(label, home, kIncludeFolders, marker); });
    return search.finish(findings);
}

fs::path find_nvrtc(const Places& places, std::vector<Finding>& findings) {
    Search search(Part::nvrtc, "NVRTC (libnvrtc.so)",
                  "pip install nvidia-cuda-nvrtc (CUDA 12: nvidia-cuda-nvrtc-cu12), or set GDN_CUDA_HOME", !env().use_nvcc);
    places.visit(
        &SearchPaths::nvrtc, [&](const auto& label, const fs::path& path) { search.file(label, path); },
        [&](const auto& label, const fs::path& home) { search.nvrtc_below(label, home); });
    return search.finish(findings);
}

fs::path find_builtins(const fs::path& nvrtc, std::vector<Finding>& findings) {
    Search search(
        Part::builtins, "NVRTC's builtins (libnvrtc-builtins.so)",
        "pip install --force-reinstall nvidia-cuda-nvrtc (CUDA 12: nvidia-cuda-nvrtc-cu12): it belongs beside libnvrtc.so",
        !env().use_nvcc);
    if (nvrtc.empty()) {
        search.note("NVRTC itself was not found");
    } else {
        search.file("beside NVRTC", builtins_beside(nvrtc));
        search.note(fmt::format("beside NVRTC: no {} in {}", expected_builtins(nvrtc), nvrtc.parent_path().string()));
    }
    return search.finish(findings);
}

fs::path find_cutlass(const Places& places, std::vector<Finding>& findings) {
    constexpr const char* marker = "cutlass/cutlass.h";
    constexpr const char* below[] = {"", "include"};
    Search search(Part::cutlass, "CUTLASS headers (cutlass/cutlass.h)",
                  "pip install nvidia-cutlass, or set GDN_CUTLASS_INCLUDE", true);
    search.folder("init()", places.from_init.cutlass_include, below, marker);
    search.folder("GDN_CUTLASS_INCLUDE", env().cutlass_include, below, marker);
    search.folder("wheels", places.from_hook.cutlass_include, below, marker);
    search.note("no other place is searched");
    return search.finish(findings);
}

// CUTLASS 4.2 compiles with libcu++ from CUDA 12.9's CCCL to CUDA 13.1's. From CCCL 3.2 on, tuple_size has template parameters
// that conflict with cute/container/array.hpp.
constexpr int kOldestCccl = 2008, kNewestCccl = 3001;  // 1000 * major + minor

std::string why_cutlass_refuses(const fs::path& cccl) {
    const auto text = read_file(cccl / "cuda/std/__cccl/version.h", std::uint64_t{1} << 20);
    constexpr std::string_view define = "#define CCCL_VERSION ";
    const std::size_t at = text ? text->find(define) : std::string::npos;
    const int version = at == std::string::npos ? 0 : std::atoi(text->c_str() + at + define.size()) / 1000;
    if (kOldestCccl <= version && version <= kNewestCccl) return "";
    const auto dotted = [](int packed) { return fmt::format("{}.{}", packed / 1000, packed % 1000); };
    return fmt::format("expected CCCL {} to {}, which CUTLASS 4.2 compiles with, got {}", dotted(kOldestCccl),
                       dotted(kNewestCccl), version == 0 ? "one without a version" : dotted(version));
}

fs::path find_cccl(const Places& places, const fs::path& cuda_include, std::vector<Finding>& findings) {
    constexpr const char* marker = "cuda/std/type_traits";
    constexpr const char* below[] = {"cccl", ""};
    Search search(Part::cccl, "libcu++ headers (cuda/std)",
                  "pip install 'nvidia-cuda-cccl>=13.0,<13.2' (for CUDA 12 too), or set GDN_CCCL_INCLUDE", true);
    search.unless(why_cutlass_refuses);
    search.folder("GDN_CCCL_INCLUDE", env().cccl_include, below, marker);
    search.folder("beside the CUDA headers", cuda_include, below, marker);  // same release as the compiler
    places.visit(
        &SearchPaths::cccl_include, [&](const auto& label, const fs::path& path) { search.folder(label, path, marker); },
        [&](const auto& label, const fs::path& home) { search.folder(label, home, kCcclFolders, marker); });
    return search.finish(findings);
}

fs::path find_library(const Places& places, std::vector<Finding>& findings) {
    constexpr const char* marker = "gdn_cuda/kernels";
    constexpr const char* below[] = {"", "include"};
    constexpr const char* around[] = {"../include", "../../include"};  // installed package; source tree
    Search search(Part::library, "gdn_cuda's kernel headers (gdn_cuda/kernels)",
                  "install gdn_cuda again, or call init(library_root=...)", true);
    search.folder("init(library_root)", places.from_init.library_root, below, marker);
    search.folder("package", places.from_hook.library_root, below, marker);
    std::error_code ignored;
    search.folder("around the library in", fs::canonical(this_library(), ignored).parent_path(), around, marker);
    return search.finish(findings);
}

}  // namespace

std::string missing_in_library_root(const fs::path& folder) {
    const bool there = is_there(folder / "gdn_cuda/kernels") || is_there(folder / "include/gdn_cuda/kernels");
    return there ? "" : "gdn_cuda/kernels or include/gdn_cuda/kernels";
}

std::string missing_in_cuda_home(const fs::path& folder) {
    std::vector<Finding> found;
    Search headers(Part::cuda_headers, "", "", false), nvrtc(Part::nvrtc, "", "", false), nvcc(Part::nvcc, "", "", false);
    const bool any = !headers.folder("", folder, kIncludeFolders, "cuda_bf16.h").finish(found).empty() ||
                     !nvrtc.nvrtc_below("", folder).finish(found).empty() || !nvcc.nvcc_below("", folder).finish(found).empty();
    return any ? "" : "include/cuda_bf16.h, lib64/libnvrtc.so.* or bin/nvcc (of a toolkit, or of CUDA's wheels)";
}

Toolchain discover(const SearchPaths& from_init, const SearchPaths& from_hook) {
    const Places places(from_init, from_hook);
    Toolchain tools;
    tools.library_include = find_library(places, tools.findings);
    tools.nvrtc = find_nvrtc(places, tools.findings);
    tools.nvrtc_builtins = find_builtins(tools.nvrtc, tools.findings);
    tools.nvcc = find_nvcc(places, tools.findings);
    tools.cuda_include = find_cuda_headers(places, tools.nvcc, tools.findings);
    tools.cccl_include = find_cccl(places, tools.cuda_include, tools.findings);
    tools.cutlass_include = find_cutlass(places, tools.findings);
    return tools;
}

std::vector<fs::path> Toolchain::include_dirs(bool uses_cutlass) const {
    std::vector<fs::path> result;
    const auto add = [&result](const fs::path& path) {
        if (!path.empty()) result.push_back(path);
    };
    add(library_include);
    if (uses_cutlass) add(cutlass_include);
    if (uses_cutlass && cccl_include != cuda_include) add(cccl_include);
    const fs::path parent = uses_cutlass ? cccl_parent() : fs::path();
    // Before the CUDA headers only if those bring another libcu++, which would shadow <cccl/...>.
    const bool other_cccl = is_folder(cuda_include / "cccl");
    if (other_cccl) add(parent);
    add(cuda_include);
    if (!other_cccl) add(parent);
    return result;
}

fs::path Toolchain::cccl_parent() const {
    const fs::path parent = cccl_include.parent_path();
    return cccl_include.filename() == "cccl" && parent != cuda_include ? parent : fs::path();
}

void Toolchain::require(bool use_nvcc, bool uses_cutlass) const {
    std::vector<Part> wanted = {Part::library, Part::cuda_headers};
    if (use_nvcc)
        wanted.push_back(Part::nvcc);
    else
        wanted.insert(wanted.end(), {Part::nvrtc, Part::builtins});
    if (uses_cutlass) wanted.insert(wanted.end(), {Part::cutlass, Part::cccl});
    require(wanted);
}

void Toolchain::require(const std::vector<Part>& parts) const {
    std::string missing;
    for (const Finding& finding : findings)
        if (!finding.found && std::find(parts.begin(), parts.end(), finding.part) != parts.end())
            missing += fmt::format("\n{} not found.\n  tried {}\n  to fix: {}", finding.what,
                                   fmt::join(finding.tried, "\n  tried "), finding.fix);
    if (!missing.empty()) throw Error("compiling a kernel needs what is missing here:" + missing);
}

}  // namespace gdn_cuda::jit
