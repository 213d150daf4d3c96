// The toolchain of this process, and the part of it that enters keys.

#include <deque>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "elf.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "external_headers.hpp"
#include "fork.hpp"
#include "key.hpp"
#include "nvcc_environment.hpp"
#include "own_headers.hpp"
#include "path_memo.hpp"
#include "process.hpp"
#include "runtime.hpp"
#include "store.hpp"
#include "text.hpp"
#include "toolchain.hpp"
#include "tree.hpp"

namespace gdn_cuda::jit {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMissing = "missing";

// What the host program set; guarded by fork_lock().
struct Settings {
    PathHook hook;
    std::function<HookInputs()> inputs;
    SearchPaths from_init;
};
auto& settings = *new Settings;  // never destroyed: the hook may belong to Python, which ends first

Settings current_settings() {
    const auto lock = fork_lock();
    return settings;
}

struct Included {
    std::string digest;             // this library's headers
    std::vector<Include> external;  // what leads to others'
    bool unclear = false;
};

struct State {
    std::optional<SearchPaths> from_hook;
    std::string hook_failure;          // why from_hook is empty; the hook is then called again
    std::deque<Toolchain> discovered;  // the last one is in use; callers may hold references to older ones
    std::string library;
    std::optional<OwnHeaders> own_headers;
    std::map<std::string, Included> included;  // by the including code
    std::string compiler;
    std::map<bool, ExternalHeaders> external;  // by uses_cutlass
    // What of them the key covers: by the includes that lead there, or, where these cannot be followed, all.
    std::map<std::pair<bool, std::vector<Include>>, std::string> reached;
    std::map<bool, std::string> all_headers;

    void forget_identities() {
        library.clear();
        own_headers.reset();
        included.clear();
        compiler.clear();
        external.clear();
        reached.clear();
        all_headers.clear();
    }
};
Guarded<State> state;

fs::path memo_for(const char* label, const std::string& subject) {
    return Store::instance().memo_path(fmt::format("{}-{}", label, sha256_hex(subject).substr(0, 16)));
}

SearchPaths ask(const Settings& now) {
    if (!now.hook) return {};
    if (!now.inputs) return now.hook();
    const HookInputs inputs = now.inputs();
    return memoised_paths(inputs, memo_for("paths", inputs.identity), now.hook);
}

// Discovers with the host's current settings. Exceptions other than Error (an interrupt) propagate and change no state.
Toolchain discover_with(State& s, const Settings& now) {
    if (!s.from_hook) {
        s.hook_failure.clear();
        try {
            s.from_hook = ask(now);
        } catch (const Error& error) {
            s.hook_failure = fmt::format("wheels: {}", error.what());
        }
    }
    Toolchain tools = discover(now.from_init, s.from_hook.value_or(SearchPaths{}));
    if (!s.hook_failure.empty())
        for (Finding& finding : tools.findings)
            if (!finding.found) finding.tried.push_back(s.hook_failure);
    return tools;
}

bool same_paths(const Toolchain& a, const Toolchain& b) {
    return a.library_include == b.library_include && a.include_dirs(true) == b.include_dirs(true) && a.nvrtc == b.nvrtc &&
           a.nvcc == b.nvcc;
}

// Rejects a folder without the expected contents, which discovery would skip silently.
fs::path folder_argument(const char* argument, const fs::path& path, std::string (*missing)(const fs::path&)) {
    std::error_code error;
    if (!fs::is_directory(path, error))
        throw Error(fmt::format("init: {}: expected a folder that {}, got {}", argument,
                                error == std::errc::permission_denied ? "this user may reach (permission denied)" : "exists",
                                path.string()));
    if (const std::string what = missing(path); !what.empty())
        throw Error(fmt::format("init: {}: expected a folder with {}, got {}", argument, what, path.string()));
    return fs::canonical(path);
}

std::string file_identity(const fs::path& path) {
    return memoised(path, memo_for("build", path.string()), [&] { return build_identity(path); });
}

std::string nvcc_identity(const fs::path& nvcc) {
    return memoised(nvcc, memo_for("nvcc", nvcc.string()), [&] {
        ProcessResult version = run_process({nvcc.string(), "--version"});
        if (!version.started || version.exit_code != 0)
            throw Error(fmt::format("{} --version: expected a working nvcc, got: {}", nvcc.string(), version.output));
        for (char& c : version.output)
            if (c == '\n') c = ' ';
        return version.output + build_identity(nvcc);
    });
}

// The environment settings that change nvcc's output and that nvcc is run with.
std::string nvcc_environment() {
    const fs::path host_compiler = nvcc_host_compiler();
    std::error_code ignored;
    return fmt::format(" {} host compiler {}", nvcc_settings_of_environment(),
                       fs::is_regular_file(host_compiler, ignored) ? file_identity(host_compiler) : kMissing);
}

const Toolchain& toolchain_of(State& s) {
    if (!s.discovered.empty() && s.from_hook) return s.discovered.back();
    Toolchain tools = discover_with(s, current_settings());
    if (s.discovered.empty() || !same_paths(tools, s.discovered.back())) {
        s.discovered.push_back(std::move(tools));
        s.forget_identities();
    }
    return s.discovered.back();
}

const fs::path& library_include(State& s) {
    const Toolchain& tools = toolchain_of(s);
    tools.require({Part::library});
    return tools.library_include;
}

const std::string& library_digest_of(State& s) {
    if (s.library.empty()) {
        const fs::path& folder = library_include(s);
        // The folder may be shared (an install prefix's include/): only gdn_cuda/ counts.
        s.library = tree_digest(folder / "gdn_cuda", memo_for("ours", folder.string()), {});
    }
    return s.library;
}

const Included& included_of(State& s, const std::string& code) {
    const fs::path& folder = library_include(s);
    if (const auto known = s.included.find(code); known != s.included.end()) return known->second;
    if (!s.own_headers) s.own_headers.emplace(folder, memo_for("included", folder.string()));
    HeaderSet found = s.own_headers->of(code);
    KeyBuilder key;
    for (const Header& header : found.headers) key.add(header.name, header.digest);
    if (found.unclear) key.add("all of ours", library_digest_of(s));
    return s.included[code] = {key.hex(), std::move(found.external), found.unclear};
}

// Empty if an include cannot be determined.
std::string reached_headers(State& s, const Toolchain& tools, bool uses_cutlass, std::vector<Include> includes) {
    std::vector<fs::path> folders = tools.include_dirs(uses_cutlass);
    if (env().use_nvcc) {  // what it includes and where it searches without being told
        includes.push_back({"cuda_runtime.h", false});
        folders.push_back(tools.cuda_include / "cccl");
    }
    std::string subject;
    for (const fs::path& folder : folders) subject += folder.string() + '\n';
    for (const Include& include : includes) subject += (include.quoted ? '"' : '<') + include.name + '\n';
    ExternalHeaders& headers = s.external.try_emplace(uses_cutlass, std::move(folders)).first->second;
    return headers.digest(includes, memo_for("reached", subject));
}

std::string external_headers_of(State& s, const Toolchain& tools, bool uses_cutlass, const Included& included) {
    if (!included.unclear) {
        const std::pair key(uses_cutlass, included.external);
        auto known = s.reached.find(key);
        if (known == s.reached.end())
            known = s.reached.emplace(key, reached_headers(s, tools, uses_cutlass, included.external)).first;
        if (!known->second.empty()) return known->second;
    }
    std::string& all = s.all_headers[uses_cutlass];
    if (all.empty()) all = tools.external_headers_identity(uses_cutlass);
    return all;
}

}  // namespace

void set_path_hook(PathHook hook, std::function<HookInputs()> inputs) {
    const auto s = state.lock();
    s->from_hook.reset();
    const auto lock = fork_lock();
    settings.hook.swap(hook);
    settings.inputs.swap(inputs);
}

void init(const fs::path& library_root, const fs::path& cuda_home) {
    const auto s = state.lock();
    Settings now = current_settings();
    const SearchPaths before = now.from_init;
    if (!library_root.empty())
        now.from_init.library_root = folder_argument("library_root", library_root, missing_in_library_root);
    if (!cuda_home.empty()) now.from_init.cuda_home = folder_argument("cuda_home", cuda_home, missing_in_cuda_home);
    if (now.from_init == before) return;
    if (!s->discovered.empty()) {
        Toolchain tools = discover_with(*s, now);
        if (!same_paths(tools, s->discovered.back())) {
            if (any_kernel_loaded())
                throw Error(
                    fmt::format("init: expected the paths that the loaded kernels came from (headers in {}, CUDA in {}), got "
                                "library_root={} cuda_home={}; call init() before the first operator runs",
                                s->discovered.back().library_include.string(), s->discovered.back().cuda_include.string(),
                                library_root.string(), cuda_home.string()));
            s->discovered.push_back(std::move(tools));
            s->forget_identities();
        }
    }
    const auto lock = fork_lock();
    settings.from_init = now.from_init;
}

const Toolchain& toolchain() {
    return toolchain_of(*state.lock());
}

std::string Toolchain::compiler_identity(bool use_nvcc) const {
    if (use_nvcc) return nvcc.empty() ? kMissing : nvcc_identity(nvcc);
    if (nvrtc.empty() || nvrtc_builtins.empty()) return kMissing;
    return fmt::format("nvrtc {} builtins {}", file_identity(nvrtc), file_identity(nvrtc_builtins));
}

std::string Toolchain::external_headers_identity(bool uses_cutlass) const {
    KeyBuilder key;
    const auto add = [&key](const char* label, const char* memo, const fs::path& root, const FolderFilter& enter) {
        key.add(label, root.empty() ? kMissing : tree_digest(root, memo_for(memo, root.string()), enter));
    };
    // The subfolders that kernels can include; CUDA's host libraries have others.
    const FolderFilter kernel_folders = [](std::string_view folder) {
        return folder == "crt" || folder == "cooperative_groups" || folder.starts_with("cooperative_groups/");
    };
    add("cuda", "cuda", cuda_include, kernel_folders);
    if (uses_cutlass) {
        if (!cccl_parent().empty()) add("beside cccl", "cuda", cccl_parent(), kernel_folders);
        add("cutlass", "tree", cutlass_include, {});
        if (cccl_include != cuda_include)
            add("cccl", "tree", cccl_include, {});
        else  // CUDA 12 toolkits mix libcu++ with their other headers
            add("cccl", "cccl", cccl_include, [](std::string_view folder) {
                return folder == "cuda" || folder == "nv" || folder.starts_with("cuda/") || folder.starts_with("nv/");
            });
    }
    return key.hex();
}

std::string library_digest() {
    return library_digest_of(*state.lock());
}

std::string included_digest(const std::string& code) {
    return included_of(*state.lock(), code).digest;
}

Identities identities(const std::string& code, bool uses_cutlass) {
    const auto s = state.lock();
    const Included included = included_of(*s, code);
    const Toolchain& tools = toolchain_of(*s);
    if (s->compiler.empty()) s->compiler = tools.compiler_identity(env().use_nvcc) + (env().use_nvcc ? nvcc_environment() : "");
    return {included.digest, s->compiler, external_headers_of(*s, tools, uses_cutlass, included)};
}

void refresh_identities() {
    state.lock()->forget_identities();
}

}  // namespace gdn_cuda::jit
