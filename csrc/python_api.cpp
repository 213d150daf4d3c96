// gdn_cuda._C: runtime controls for Python (paths, compile, load, cache, devices). Includes no torch header: operators are
// registered as torch ops elsewhere.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "integrations.hpp"
#include "jit/cache_place.hpp"
#include "jit/compiler.hpp"
#include "jit/device.hpp"
#include "jit/driver.hpp"
#include "jit/env.hpp"
#include "jit/errors.hpp"
#include "jit/interrupt.hpp"
#include "jit/l2_window.hpp"
#include "jit/log.hpp"
#include "jit/no_compile.hpp"
#include "jit/prebuilt.hpp"
#include "jit/runtime.hpp"
#include "jit/store.hpp"
#include "jit/toolchain.hpp"
#include "launch/registry.hpp"
#include "python_explanation.hpp"
#include "python_gil.hpp"
#include "python_interrupt.hpp"
#include "python_operators.hpp"
#include "python_text.hpp"
#include "python_tuning.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {
namespace {

// Runs `call` without the GIL, since the core may wait on its own locks and call back into Python.
template <class Call>
decltype(auto) without_gil(Call&& call) {
    const GilReleased released;
    return std::forward<Call>(call)();
}

// A Python callable that C++ may keep beyond the interpreter's life; never destroyed, as the GIL is gone by then.
using Callable = std::shared_ptr<py::function>;
Callable keep(py::function function) {
    return {new py::function(std::move(function)), [](py::function*) {}};
}

jit::SearchPaths to_search_paths(const py::dict& found) {
    jit::SearchPaths paths;
    for (const auto& [name, value] : found) {
        const auto key = name.cast<std::string>();
        const auto path = value.cast<std::filesystem::path>();
        if (key == "library_root")
            paths.library_root = path;
        else if (key == "cuda_include")
            paths.cuda_include = path;
        else if (key == "cutlass_include")
            paths.cutlass_include = path;
        else if (key == "cccl_include")
            paths.cccl_include = path;
        else if (key == "nvrtc")
            paths.nvrtc = path;
        else if (key == "nvcc")
            paths.nvcc = path;
        else
            throw jit::Error("set_path_hook: the hook returned the unknown key '" + key + "'");
    }
    return paths;
}

// Calls a hook and converts its result. Its exceptions become jit::Error, which the core handles; KeyboardInterrupt and the
// like go through to the caller.
template <class Convert>
auto call_hook(const py::function& hook, Convert&& convert) {
    const std::string failed = "finding headers and compilers failed: ";
    const GilHeld gil;
    if (!gil) throw jit::Error(failed + "Python has ended");
    try {
        const py::tuple no_arguments;
        const auto result = py::reinterpret_steal<py::object>(call_python(hook.ptr(), no_arguments.ptr()));
        if (!result) throw py::error_already_set();
        return convert(result);
    } catch (py::error_already_set& error) {
        if (error.matches(PyExc_Exception)) throw jit::Error(failed + error.what());
        error.restore();
        throw_python_error();
    } catch (const py::cast_error& error) {
        throw jit::Error(failed + error.what());
    }
}

void set_path_hook(py::function hook, std::optional<py::function> inputs) {
    jit::PathHook find = [call = keep(std::move(hook))] {
        return call_hook(*call, [](const py::object& found) { return to_search_paths(py::dict(found)); });
    };
    std::function<jit::HookInputs()> depends_on;
    if (inputs)
        depends_on = [call = keep(std::move(*inputs))] {
            return call_hook(*call, [](const py::tuple& given) {
                return jit::HookInputs{given[0].cast<std::filesystem::path>().string(),
                                       given[1].cast<std::vector<std::filesystem::path>>()};
            });
        };
    without_gil([&] { jit::set_path_hook(std::move(find), std::move(depends_on)); });
}

void set_log_sink(std::optional<py::function> sink) {
    jit::LogSink forward;
    if (sink)
        forward = [call = keep(std::move(*sink))](jit::Level level, const std::string& text) {
            const GilHeld gil;
            if (gil) call_sink(*call, py::make_tuple(static_cast<int>(level), to_python(text)));
        };
    without_gil([&] { jit::set_log_sink(std::move(forward)); });
}

py::list variables() {
    py::list result;
    for (const auto& variable : jit::variables())
        result.append(py::dict("name"_a = variable.name, "default"_a = variable.default_text, "meaning"_a = variable.meaning));
    return result;
}

py::dict env() {
    const jit::Env& env = without_gil([]() -> const jit::Env& { return jit::env(); });
    py::dict settings;
    for (const jit::Setting* each = jit::Setting::first(); each != nullptr; each = each->next())
        settings[each->variable().name] = each->value();
    return py::dict("cache_dir"_a = to_python(env.cache_dir), "cache_max_bytes"_a = env.cache_max_bytes,
                    "prebuilt_dir"_a = to_python(env.prebuilt_dir), "disable"_a = env.disable, "use_nvcc"_a = env.use_nvcc,
                    "nvcc"_a = to_python(env.nvcc), "dump"_a = env.dump, "lineinfo"_a = env.lineinfo, "print"_a = env.print,
                    "log_level"_a = env.log_level, "cuda_home"_a = to_python(env.cuda_home),
                    "cutlass_include"_a = to_python(env.cutlass_include), "cccl_include"_a = to_python(env.cccl_include),
                    "tuned"_a = env.tuned, "nvtx"_a = env.nvtx, "settings"_a = settings);
}

py::dict to_dict(const jit::Finding& finding) {
    return py::dict("what"_a = finding.what, "found"_a = finding.found ? py::object(to_python(*finding.found)) : py::none(),
                    "tried"_a = to_python(finding.tried), "fix"_a = finding.fix, "required"_a = finding.required);
}

py::dict toolchain() {
    struct {
        const jit::Toolchain* tools;
        std::string nvrtc, nvcc;
        std::vector<std::string> include_dirs;
        std::string digest;
    } state = {};
    without_gil([&] {
        state.tools = &jit::toolchain();
        if (!state.tools->nvrtc.empty()) state.nvrtc = state.tools->compiler_identity(false);
        if (!state.tools->nvcc.empty()) state.nvcc = state.tools->compiler_identity(true);
        for (const auto& directory : state.tools->include_dirs(true)) state.include_dirs.push_back(directory.string());
        if (!state.tools->library_include.empty()) state.digest = jit::library_digest();
    });
    py::list findings;
    for (const auto& finding : state.tools->findings) findings.append(to_dict(finding));
    const auto or_none = [](const std::string& text) { return text.empty() ? py::object(py::none()) : to_python(text); };
    return py::dict("findings"_a = findings, "nvrtc_identity"_a = or_none(state.nvrtc), "nvcc_identity"_a = or_none(state.nvcc),
                    "include_dirs"_a = to_python(state.include_dirs), "library_digest"_a = state.digest);
}

py::dict to_dict(const jit::DeviceTraits& traits) {
    return py::dict("ordinal"_a = traits.ordinal, "name"_a = traits.name, "arch"_a = traits.arch,
                    "capability"_a = traits.capability, "multiprocessors"_a = traits.multiprocessors,
                    "l2_bytes"_a = traits.l2_bytes, "shared_bytes_per_block"_a = traits.shared_bytes_per_block);
}

py::dict driver() {
    std::string why_not;
    int version = 0;
    std::vector<jit::DeviceTraits> devices;
    const bool available = without_gil([&] {
        if (!jit::driver_available(&why_not)) return false;
        int count = 0;
        jit::check(jit::driver().driver_version(&version), "cuDriverGetVersion");
        jit::check(jit::driver().device_count(&count), "cuDeviceGetCount");
        for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(jit::device_traits(ordinal));
        return true;
    });
    py::list listed;
    for (const auto& traits : devices) listed.append(to_dict(traits));
    return py::dict("available"_a = available, "why_not"_a = to_python(why_not), "version"_a = version, "devices"_a = listed);
}

py::list kernels() {
    py::list result;
    for (const auto& kernel : registry()) {
        py::list configurations;
        for (const auto& entry : kernel.configurations)
            configurations.append(py::dict("configuration"_a = entry.source.configuration, "code"_a = entry.source.code,
                                           "threads"_a = entry.threads, "shared_bytes"_a = entry.shared_bytes));
        const bool limited = kernel.max_capability < std::numeric_limits<int>::max();
        result.append(py::dict("family"_a = kernel.family, "name"_a = kernel.name, "summary"_a = kernel.summary,
                               "min_capability"_a = kernel.min_capability,
                               "max_capability"_a = limited ? std::optional(kernel.max_capability) : std::nullopt,
                               "uses_cutlass"_a = kernel.uses_cutlass, "configurations"_a = configurations));
    }
    return result;
}

const RegisteredConfiguration& registered(const std::string& kernel_id, const std::string& configuration) {
    bool known = false;
    for (const auto& kernel : registry())
        for (const auto& entry : kernel.configurations) {
            if (entry.source.id() != kernel_id) continue;
            known = true;
            if (entry.source.configuration == configuration) return entry;
        }
    throw jit::Error(known ? "configuration: expected one that kernels() lists for " + kernel_id + ", got " + configuration
                           : "kernel_id: expected one that kernels() lists, got " + kernel_id);
}

py::dict compile_source(const jit::KernelSource& source, const std::string& arch, const std::filesystem::path& out_dir,
                        bool force, int dynamic_shared_bytes, const std::atomic<bool>* cancellation = nullptr) {
    jit::Obtained obtained;
    std::string code_key;
    std::optional<std::string> full_key;
    without_gil([&] {
        const jit::CancelledBy cancelled(cancellation);
        obtained =
            out_dir.empty() ? jit::obtain(source, arch, force) : jit::export_prebuilt(source, arch, out_dir.string(), force);
        code_key = jit::code_key(source, arch);
        try {
            full_key = jit::full_key(source, arch);
        } catch (const jit::Error&) {  // no compiler, thus no full key; prebuilt entries need neither
        }
    });
    const auto measured = [&](auto value) {
        return obtained.origin == jit::Origin::compiled ? std::optional(value) : std::nullopt;
    };
    return py::dict(
        "origin"_a = jit::to_string(obtained.origin), "seconds"_a = obtained.seconds,
        "registers"_a = measured(obtained.resources.registers),
        "shared_bytes"_a = measured(obtained.resources.static_shared_bytes + dynamic_shared_bytes),
        "spill_bytes"_a = measured(obtained.resources.spill_bytes), "stack_bytes"_a = measured(obtained.resources.stack_bytes),
        "is_serialized"_a = measured(obtained.resources.is_serialized), "code_key"_a = code_key, "full_key"_a = full_key);
}

py::dict compile(const std::string& kernel_id, const std::string& configuration, const std::string& arch,
                 const std::filesystem::path& out_dir, bool force, const std::shared_ptr<std::atomic<bool>>& cancellation) {
    const RegisteredConfiguration& entry = registered(kernel_id, configuration);
    return compile_source(entry.source, arch, out_dir, force, entry.shared_bytes, cancellation.get());
}

py::dict compile_text(const std::string& family, const std::string& name, const std::string& code, const std::string& arch,
                      bool uses_cutlass, bool force) {
    return compile_source({family, name, "{}", code, uses_cutlass}, arch, "", force, 0);
}

std::vector<int> capabilities() {
    return without_gil([] {
        const jit::Toolchain& tools = jit::toolchain();
        return jit::env().use_nvcc || tools.nvrtc.empty() ? std::vector<int>() : jit::nvrtc_capabilities(tools);
    });
}

void load(const std::string& kernel_id, const std::string& configuration, int device) {
    without_gil([&] { registered(kernel_id, configuration).load(device); });
}

py::list load_events() {
    py::list result;
    for (const auto& event : without_gil(jit::load_events))
        result.append(py::dict("kernel"_a = event.kernel, "configuration"_a = event.configuration, "arch"_a = event.arch,
                               "origin"_a = event.origin, "seconds"_a = event.seconds));
    return result;
}

py::str cache_directory() {
    return to_python(without_gil([] { return jit::Store::instance().directory().string(); }));
}

py::list cache_refusals() {
    return to_python(without_gil([] { return jit::Store::instance().refusals(); }));
}

py::list cache_list(bool verify) {
    py::list result;
    for (const auto& entry : without_gil([&] { return jit::Store::instance().list(verify); }))
        result.append(py::dict("file"_a = to_python(entry.file), "bytes"_a = entry.bytes, "age_seconds"_a = entry.age_seconds,
                               "problem"_a = to_python(entry.problem)));
    return result;
}

py::list prebuilt_folders() {
    py::list result;
    for (const auto& folder : without_gil(jit::prebuilt_folders))
        result.append(py::dict("path"_a = to_python(folder.path), "refusal"_a = to_python(folder.refusal)));
    return result;
}

std::size_t cache_clear() {
    return without_gil([] { return jit::Store::instance().clear(); });
}

// A context manager for Python's `with`, which may be entered several times, also by several threads. The destructor leaves
// what is still entered.
class NoCompile {
  public:
    NoCompile() = default;
    ~NoCompile() {
        while (entered_ > 0) leave();
    }
    NoCompile(const NoCompile&) = delete;
    NoCompile& operator=(const NoCompile&) = delete;

    void enter() {
        jit::enter_no_compile();
        ++entered_;
    }
    void leave() {
        --entered_;
        jit::leave_no_compile();
    }

  private:
    int entered_ = 0;
};

}  // namespace

PYBIND11_MODULE(_C, module) {
    module.doc() = "Runtime controls of gdn_cuda: where things are, what is compiled, what is cached, which devices there are.";
    define_interrupts(module);

    module.def(
        "set_path_hook", &set_path_hook, "hook"_a, "inputs"_a = py::none(),
        "Installs the callable that finds headers and compilers in wheels. It is called when they are first needed, and again "
        "after it raised; not at all where an earlier process kept its answer for the same inputs(), which are a text and "
        "folders whose contents count too.");
    module.def("set_log_sink", &set_log_sink, "sink"_a,
               "Sends messages to sink(level, text), with the levels of Python's logging. None: to standard error.");
    module.def(
        "init",
        [](const std::filesystem::path& library_root, const std::filesystem::path& cuda_home) {
            without_gil([&] { jit::init(library_root, cuda_home); });
        },
        "library_root"_a, "cuda_home"_a,
        "States where the kernel headers and the CUDA toolkit are; an empty string means: find it. An error once a kernel was "
        "loaded from other paths.");

    module.def("variables", &variables, "Every environment variable the library reads: name, default, meaning.");
    module.def(
        "requested_integrations", [] { return without_gil(requested_integrations); },
        "The engines that GDN_INTEGRATIONS names.");
    module.def("env", &env, "The variables' parsed values, as they stood at first use. Raises for a malformed one.");
    module.def("toolchain", &toolchain,
               "What was looked for and found: compilers with their exact builds, and header folders.");
    module.def("driver", &driver, "The CUDA driver and its devices, or why there is none.");
    module.def(
        "device_traits_for_arch", [](const std::string& arch) { return to_dict(jit::DeviceTraits::for_arch(arch)); }, "arch"_a,
        "Typical traits of a device of this architecture, for work with no GPU.");
    module.def(
        "typical_devices",
        [] {
            py::list all;
            for (const auto& traits : jit::typical_devices()) all.append(to_dict(traits));
            return all;
        },
        "The devices whose traits are known by name.");

    module.def("arch_of", &jit::arch_of, "capability"_a,
               "What kernels are compiled for that devices of this capability load: \"sm_90a\" for 90.");

    module.def("capabilities", &capabilities,
               "The capabilities that NVRTC compiles for; none where nvcc compiles, or nothing.");
    module.def("kernels", &kernels, "The registry: every kernel with every configuration its heuristic can choose.");
    module.def(
        "compile", &compile, "kernel_id"_a, "configuration"_a, "arch"_a, "out_dir"_a = "", "force"_a = false,
        "cancellation"_a = py::none(),
        "Finds or compiles one registered configuration, into the cache or as a prebuilt entry in out_dir. Needs no GPU. "
        "registers, shared_bytes, spill_bytes, stack_bytes and is_serialized are None unless it compiled.");
    module.def("compile_text", &compile_text, "family"_a, "name"_a, "code"_a, "arch"_a, "uses_cutlass"_a = false,
               "force"_a = false, "The same for the text of a translation unit with one kernel.");
    module.def("load", &load, "kernel_id"_a, "configuration"_a, "device"_a,
               "Loads one registered configuration into this process for a device, as its first call would.");
    py::class_<NoCompile>(module, "NoCompile", "A context in which nothing is compiled in this process.")
        .def(py::init())
        .def("__enter__", &NoCompile::enter)
        .def("__exit__", [](NoCompile& self, const py::args&) { self.leave(); });
    module.def("load_events", &load_events, "What this process loaded so far, from where, and how long it took.");

    py::class_<jit::L2Window>(module, "L2Window", "An access-policy window of a stream over a range of memory, until released.")
        .def(py::init([](int device, std::uintptr_t stream, std::uintptr_t base, std::size_t bytes) {
                 return without_gil([&] {
                     return std::make_unique<jit::L2Window>(device, reinterpret_cast<CUstream>(stream),
                                                            reinterpret_cast<const void*>(base), bytes);
                 });
             }),
             "device"_a, "stream"_a, "base"_a, "bytes"_a)
        .def(
            "release", [](jit::L2Window& window) { without_gil([&] { window.release(); }); },
            "Gives the stream back the window it had. Free when repeated.");
    module.def(
        "most_l2_window_bytes", [](int device) { return without_gil([&] { return jit::most_l2_window_bytes(device); }); },
        "device"_a, "The most bytes that a window may cover on a device; 0 where it can have none.");

    module.def("cache_directory", &cache_directory, "The disk cache's folder; empty when cubins are kept in memory only.");
    module.def("cache_refusals", &cache_refusals, "Places passed over for the cache, each with the reason.");
    module.def("cache_list", &cache_list, "verify"_a = false,
               "Entries of the disk cache; with verify, each one's problem if it has one.");
    module.def("cache_clear", &cache_clear, "Removes the entries of the disk cache and no other file; returns how many.");
    module.def(
        "prebuilt_folders", &prebuilt_folders,
        "Folders of kernels compiled ahead of time, in the order they are searched: each one's path, and why it is passed "
        "over if it is.");

    define_tuning(module);
    define_for_operators(module);
    define_explanation(module);
}

}  // namespace gdn_cuda
