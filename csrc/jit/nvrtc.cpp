#include "nvrtc.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "compiler.hpp"
#include "device.hpp"
#include "env.hpp"
#include "errors.hpp"
#include "files.hpp"
#include "fork.hpp"
#include "host_signals.hpp"
#include "interrupt.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

// NVRTC's C interface, declared here because its header may be missing at build time.
using Result = int;
using Program = struct NvrtcProgram*;

struct Nvrtc {
    Result (*version)(int*, int*);
    const char* (*error_string)(Result);
    Result (*arch_count)(int*);
    Result (*archs)(int*);
    Result (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
    Result (*destroy)(Program*);
    Result (*compile)(Program, int, const char* const*);
    Result (*log_size)(Program, std::size_t*);
    Result (*log)(Program, char*);
    Result (*cubin_size)(Program, std::size_t*);
    Result (*cubin)(Program, char*);
    Result (*ptx_size)(Program, std::size_t*);
    Result (*ptx)(Program, char*);

    int major = 0, minor = 0;
    std::string path;

    std::string name() const { return fmt::format("NVRTC {}.{} ({})", major, minor, path); }
    void check(Result result, const char* call) const {
        if (result != 0) throw Error(fmt::format("{} of {}: {}", call, name(), error_string(result)));
    }
};

void* open_library(const std::filesystem::path& path, const char* fix) {
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    throw Error(fmt::format("{}: expected a library that loads, got: {}; to fix: {}", path.string(), ::dlerror(), fix));
}

template <class Function>
void look_up(void* handle, const std::string& path, Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
    if (function == nullptr)
        throw Error(fmt::format("{}: expected NVRTC 12.0 or newer, got one without {}; to fix: pip install nvidia-cuda-nvrtc",
                                path, name));
}

// The number of threads inside NVRTC. A child forked meanwhile inherits its locked mutexes and cannot use it.
std::atomic<int> inside{0};
std::atomic<bool> lost{false};
std::atomic<bool> background_stays_out{false};
const InForkedChild refuse_nvrtc([] {
    if (inside.exchange(0) > 0) lost.store(true);
});

Nvrtc open_nvrtc(const Toolchain& tools) {
    constexpr const char* fix = "pip install --force-reinstall nvidia-cuda-nvrtc (CUDA 12: nvidia-cuda-nvrtc-cu12)";
    // NVRTC dlopens its builtins by bare name, which succeeds only if they are already loaded.
    open_library(tools.nvrtc_builtins, fix);
    void* handle = open_library(tools.nvrtc, fix);
    Nvrtc nvrtc{};
    nvrtc.path = tools.nvrtc.string();
    look_up(handle, nvrtc.path, nvrtc.version, "nvrtcVersion");
    look_up(handle, nvrtc.path, nvrtc.error_string, "nvrtcGetErrorString");
    look_up(handle, nvrtc.path, nvrtc.arch_count, "nvrtcGetNumSupportedArchs");
    look_up(handle, nvrtc.path, nvrtc.archs, "nvrtcGetSupportedArchs");
    look_up(handle, nvrtc.path, nvrtc.create, "nvrtcCreateProgram");
    look_up(handle, nvrtc.path, nvrtc.destroy, "nvrtcDestroyProgram");
    look_up(handle, nvrtc.path, nvrtc.compile, "nvrtcCompileProgram");
    look_up(handle, nvrtc.path, nvrtc.log_size, "nvrtcGetProgramLogSize");
    look_up(handle, nvrtc.path, nvrtc.log, "nvrtcGetProgramLog");
    look_up(handle, nvrtc.path, nvrtc.cubin_size, "nvrtcGetCUBINSize");
    look_up(handle, nvrtc.path, nvrtc.cubin, "nvrtcGetCUBIN");
    look_up(handle, nvrtc.path, nvrtc.ptx_size, "nvrtcGetPTXSize");
    look_up(handle, nvrtc.path, nvrtc.ptx, "nvrtcGetPTX");
    nvrtc.check(nvrtc.version(&nvrtc.major, &nvrtc.minor), "nvrtcVersion");
    const std::string builtins = fmt::format("libnvrtc-builtins.so.{}.{}", nvrtc.major, nvrtc.minor);
    if (!tools.nvrtc_builtins.filename().string().starts_with(builtins))
        throw Error(fmt::format("{}: expected {} beside it, got {}; to fix: {}", nvrtc.name(), builtins,
                                tools.nvrtc_builtins.string(), fix));
    return nvrtc;
}

Guarded<std::map<std::filesystem::path, Nvrtc>> libraries;  // never closed: its threads and data outlive us

const Nvrtc& nvrtc_of(const Toolchain& tools) {
    const auto opened = libraries.lock();
    auto found = opened->find(tools.nvrtc);
    if (found == opened->end()) found = opened->emplace(tools.nvrtc, open_nvrtc(tools)).first;
    return found->second;
}

std::atomic<void (*)()> ask_before{nullptr};

// Counts a compile. Constructed in the thread that asks for it, which `ask_before` may end; destroyed in the one that compiles.
class Inside {
  public:
    Inside() {
        if (lost.load())
            throw Error(
                "this process was forked while its parent compiled a kernel with NVRTC, which cannot be used here any more: "
                "compile before the fork (gdn_cuda.compile, gdn_cuda.warmup), or start workers with multiprocessing's "
                "\"spawn\" or "
                "\"forkserver\"");
        ++inside;
        if (in_background() && background_stays_out.load()) {  // read after counting, as `ask_before`
            --inside;
            for (;;) ::pause();
        }
        if (const auto ask =
                ask_before
                    .load()) {  // read after counting: whoever sets `ask_before` sees the count, or this thread sees `ask`
            --inside;
            ask();
            ++inside;
        }
    }
    ~Inside() {
        if (generation_ == fork_generation()) --inside;
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

  private:
    const unsigned generation_ = fork_generation();
};

// Without memory NVRTC does not fail: it aborts, or recurses until the stack ends. The largest kernels take 170 MiB. A limit
// (`ulimit -v`, or a kernel that does not overcommit) is known before.
void require_memory() {
    constexpr std::size_t kRoom = std::size_t{256} << 20;
    void* room = ::mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        throw Error(
            fmt::format("NVRTC: expected {} MiB of free memory to compile in, got: {}; to fix: raise the limit (ulimit -v)"
                        ", or compile ahead of time (python -m gdn_cuda compile)",
                        kRoom >> 20, errno_text(errno)));
    ::munmap(room, kRoom);
}

std::vector<int> capabilities_of(const Nvrtc& nvrtc) {
    int count = 0;
    nvrtc.check(nvrtc.arch_count(&count), "nvrtcGetNumSupportedArchs");
    std::vector<int> known(static_cast<std::size_t>(count));
    nvrtc.check(nvrtc.archs(known.data()), "nvrtcGetSupportedArchs");
    return known;
}

void require_arch(const Nvrtc& nvrtc, const KernelSource& source, const std::string& arch) {
    const std::vector<int> known = capabilities_of(nvrtc);
    if (std::find(known.begin(), known.end(), capability_of(arch)) == known.end())
        throw Error(fmt::format("{}: {} does not compile for {}; it knows sm_{}. To fix: install an NVRTC whose release has {}",
                                source.id(), nvrtc.name(), arch, fmt::join(known, ", sm_"), arch));
}

class Compilation {
  public:
    Compilation(const Nvrtc& nvrtc, const KernelSource& source) : nvrtc_(nvrtc) {
        const std::string name = source.family + "_" + source.name + ".cu";
        nvrtc.check(nvrtc.create(&program_, source.code.c_str(), name.c_str(), 0, nullptr, nullptr), "nvrtcCreateProgram");
    }
    ~Compilation() { nvrtc_.destroy(&program_); }
    Compilation(const Compilation&) = delete;
    Compilation& operator=(const Compilation&) = delete;

    Result run(const std::vector<std::string>& options) {
        std::vector<const char*> pointers;
        for (const std::string& option : options) pointers.push_back(option.c_str());
        return nvrtc_.compile(program_, static_cast<int>(pointers.size()), pointers.data());
    }

    // Empty if there is no output: after a failed compile NVRTC reports success and size 0.
    std::string get(Result (*size_of)(Program, std::size_t*), Result (*copy)(Program, char*)) const {
        std::size_t size = 0;
        if (size_of(program_, &size) != 0 || size == 0) return {};
        std::string bytes(size, '\0');
        return copy(program_, bytes.data()) == 0 ? bytes : std::string{};
    }
    std::string text(Result (*size_of)(Program, std::size_t*), Result (*copy)(Program, char*)) const {
        std::string result = get(size_of, copy);
        result.resize(std::min(result.find('\0'), result.size()));
        return result;
    }

  private:
    const Nvrtc& nvrtc_;
    Program program_ = nullptr;
};

Compiled compile_here(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools) {
    const auto start = std::chrono::steady_clock::now();
    require_memory();  // for the library
    const Nvrtc& nvrtc = nvrtc_of(tools);
    require_arch(nvrtc, source, arch);

    std::vector<std::string> options = code_options(source, arch);
    for (const std::string& option : dialect_options(false)) options.push_back(option);
    options.push_back("--ptxas-options=-v");
    // NVRTC 12.9 and later cache results beside the driver's cache; a cached result reports no registers or spills.
    if (std::pair(nvrtc.major, nvrtc.minor) >= std::pair(12, 9)) options.push_back("--no-cache");
    options.push_back("--frandom-seed=" + key);
    for (const auto& folder : tools.include_dirs(source.uses_cutlass)) options.push_back("-I" + folder.string());

    require_memory();  // for the compile
    Compilation compilation(nvrtc, source);
    const Result result = [&] {
        const HostSignals host_signals(reinterpret_cast<const void*>(nvrtc.compile));
        return compilation.run(options);
    }();
    Compiled compiled;
    compiled.log = compilation.text(nvrtc.log_size, nvrtc.log);
    compiled.cubin.bytes = compilation.get(nvrtc.cubin_size, nvrtc.cubin);
    if (result != 0 || compiled.cubin.bytes.empty())
        throw Error(compile_failure(source, arch, fmt::format("{}: {}", nvrtc.name(), nvrtc.error_string(result)), options,
                                    compiled.log, tools));
    compiled.cubin.symbol = entry_symbol(compiled.cubin.bytes, fmt::format("{} by {}", source.id(), nvrtc.name()));
    compiled.resources = parse_ptxas(compiled.log);
    if (env().dump) compiled.ptx = compilation.text(nvrtc.ptx_size, nvrtc.ptx);
    compiled.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return compiled;
}

}  // namespace

int inside_nvrtc() {
    return inside.load();
}

std::vector<int> nvrtc_capabilities(const Toolchain& tools) {
    const Inside counted;
    return capabilities_of(nvrtc_of(tools));
}

void keep_background_out_of_nvrtc() {
    background_stays_out.store(true);
}

void call_before_nvrtc(void (*ask)()) {
    ask_before.store(ask);
}

Compiled compile_nvrtc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools) {
    const auto compiled = std::make_shared<Compiled>();
    // Toolchains are never freed.
    run_interruptibly([=, &tools, inside = std::make_shared<const Inside>()]() mutable {
        const auto until_done = std::move(inside);
        *compiled = compile_here(source, arch, key, tools);
    });
    return std::move(*compiled);
}

}  // namespace gdn_cuda::jit
