// Which toolchain this process uses, and the part of it that goes into keys.

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>

#include "elf.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "key.hpp"
#include "nvcc_environment.hpp"
#include "process.hpp"
#include "runtime.hpp"
#include "store.hpp"
#include "text.hpp"
#include "toolchain.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMissing = "missing";

struct State {
    std::recursive_mutex mutex;
    PathHook hook;
    SearchPaths from_init;
    std::optional<SearchPaths> from_hook;
    std::string hook_failure;
    std::deque<Toolchain> discovered;  // the last one is in use; callers may hold references to those before
    std::string library;
    std::string compiler;
    std::map<bool, std::string> headers;  // by uses_cutlass

    void forget_identities() {
        library.clear();
        compiler.clear();
        headers.clear();
    }
};

State& state() {
    static auto* kept = new State;  // never destroyed: the hook may belong to Python, which ends before us
    return *kept;
}

const SearchPaths& from_hook(State& s) {
    if (!s.from_hook) {
        s.from_hook.emplace();
        try {
            if (s.hook) *s.from_hook = s.hook();
        } catch (const std::exception& error) {
            s.hook_failure = fmt::format("wheels: {}", error.what());
        }
    }
    return *s.from_hook;
}

Toolchain discover_with(State& s, const SearchPaths& from_init) {
    Toolchain tools = discover(from_init, from_hook(s));
    if (!s.hook_failure.empty())
        for (Finding& finding : tools.findings)
            if (!finding.found) finding.tried.push_back(s.hook_failure);
    return tools;
}

bool same_paths(const Toolchain& a, const Toolchain& b) {
    return a.library_include == b.library_include && a.include_dirs(true) == b.include_dirs(true) && a.nvrtc == b.nvrtc &&
           a.nvcc == b.nvcc;
}

fs::path folder_argument(const char* argument, const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error))
        throw Error(fmt::format("init: {}: expected a folder that {}, got {}", argument,
                                error == std::errc::permission_denied ? "this user may reach (permission denied)" : "exists",
                                path.string()));
    return fs::canonical(path);
}

fs::path memo_for(const char* kind, const fs::path& path) {
    return Store::instance().memo_path(fmt::format("{}-{}", kind, sha256_hex(path.string()).substr(0, 16)));
}

std::string file_identity(const fs::path& path) {
    return memoised(path, memo_for("build", path), [&] { return build_identity(path); });
}

std::string nvcc_identity(const fs::path& nvcc) {
    return memoised(nvcc, memo_for("nvcc", nvcc), [&] {
        ProcessResult version = run_process({nvcc.string(), "--version"});
        if (!version.started || version.exit_code != 0)
            throw Error(fmt::format("{} --version: expected a working nvcc, got: {}", nvcc.string(), version.output));
        for (char& c : version.output)
            if (c == '\n') c = ' ';
        return version.output + build_identity(nvcc);
    });
}

// What of the environment changes nvcc's output and is not taken away from it.
std::string nvcc_environment() {
    const fs::path host_compiler = nvcc_host_compiler();
    std::error_code ignored;
    return fmt::format(" {} host compiler {}", nvcc_settings_of_environment(),
                       fs::is_regular_file(host_compiler, ignored) ? file_identity(host_compiler) : kMissing);
}

}  // namespace

void set_path_hook(PathHook hook) {
    std::lock_guard lock(state().mutex);
    state().hook = std::move(hook);
    state().from_hook.reset();
}

void init(const fs::path& library_root, const fs::path& cuda_home) {
    State& s = state();
    std::lock_guard lock(s.mutex);
    SearchPaths wanted = s.from_init;
    if (!library_root.empty()) wanted.library_root = folder_argument("library_root", library_root);
    if (!cuda_home.empty()) wanted.cuda_home = folder_argument("cuda_home", cuda_home);
    if (wanted == s.from_init) return;
    if (!s.discovered.empty()) {
        Toolchain tools = discover_with(s, wanted);
        if (!same_paths(tools, s.discovered.back())) {
            if (any_kernel_loaded())
                throw Error(
                    fmt::format("init: expected the paths that the loaded kernels came from (headers in {}, CUDA in {}), got "
                                "library_root={} cuda_home={}; call init() before the first operator runs",
                                s.discovered.back().library_include.string(), s.discovered.back().cuda_include.string(),
                                library_root.string(), cuda_home.string()));
            s.discovered.push_back(std::move(tools));
            s.forget_identities();
        }
    }
    s.from_init = wanted;
}

const Toolchain& toolchain() {
    State& s = state();
    std::lock_guard lock(s.mutex);
    if (s.discovered.empty()) s.discovered.push_back(discover_with(s, s.from_init));
    return s.discovered.back();
}

std::string Toolchain::compiler_identity(bool use_nvcc) const {
    if (use_nvcc) return nvcc.empty() ? kMissing : nvcc_identity(nvcc);
    if (nvrtc.empty() || nvrtc_builtins.empty()) return kMissing;
    return fmt::format("nvrtc {} builtins {}", file_identity(nvrtc), file_identity(nvrtc_builtins));
}

std::string Toolchain::external_headers_identity(bool uses_cutlass) const {
    KeyBuilder key;
    const auto add = [&key](const char* label, const char* kind, const fs::path& root, const FolderFilter& enter) {
        key.add(label, root.empty() ? kMissing : tree_digest(root, memo_for(kind, root), enter));
    };
    // What a kernel can include of it: not the folders of CUDA's host libraries.
    add("cuda", "cuda", cuda_include, [](std::string_view folder) {
        return folder == "crt" || folder == "cooperative_groups" || folder.starts_with("cooperative_groups/");
    });
    if (uses_cutlass) {
        add("cutlass", "tree", cutlass_include, {});
        if (cccl_include != cuda_include)
            add("cccl", "tree", cccl_include, {});
        else  // CUDA 12 toolkits keep libcu++ among their other headers
            add("cccl", "cccl", cccl_include, [](std::string_view folder) {
                return folder == "cuda" || folder == "nv" || folder.starts_with("cuda/") || folder.starts_with("nv/");
            });
    }
    return key.hex();
}

std::string library_digest() {
    State& s = state();
    std::lock_guard lock(s.mutex);
    if (s.library.empty()) {
        const fs::path root = toolchain().library_include;
        toolchain().require({Part::library});
        // The tree may hold what is not ours (an install prefix's include/): only gdn_cuda/ counts.
        s.library = tree_digest(root / "gdn_cuda", memo_for("ours", root), {});
    }
    return s.library;
}

Identities identities(bool uses_cutlass) {
    State& s = state();
    std::lock_guard lock(s.mutex);
    if (s.compiler.empty())
        s.compiler = toolchain().compiler_identity(env().use_nvcc) + (env().use_nvcc ? nvcc_environment() : "");
    std::string& headers = s.headers[uses_cutlass];
    if (headers.empty()) headers = toolchain().external_headers_identity(uses_cutlass);
    return {library_digest(), s.compiler, headers};
}

void refresh_identities() {
    std::lock_guard lock(state().mutex);
    state().forget_identities();
}

}  // namespace gdn_cuda::jit
