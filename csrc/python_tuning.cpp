#include "python_tuning.hpp"

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <map>
#include <string>

#include "jit/device.hpp"
#include "jit/store.hpp"
#include "jit/tuned_store.hpp"
#include "launch/tunables.hpp"
#include "python_gil.hpp"
#include "python_text.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {

jit::DeviceTraits to_traits(const py::dict& from) {
    jit::DeviceTraits traits;
    traits.ordinal = from["ordinal"].cast<int>();
    traits.name = from["name"].cast<std::string>();
    traits.arch = from["arch"].cast<std::string>();
    traits.capability = from["capability"].cast<int>();
    traits.multiprocessors = from["multiprocessors"].cast<int>();
    traits.l2_bytes = from["l2_bytes"].cast<int>();
    traits.shared_bytes_per_block = from["shared_bytes_per_block"].cast<int>();
    return traits;
}

namespace {

std::vector<std::string> candidates(const std::string& kernel, const std::string& problem, const py::dict& device) {
    return tunable(kernel).candidates(problem, to_traits(device));
}

std::string explain(const std::string& kernel, const std::string& problem, const py::dict& device) {
    const jit::DeviceTraits traits = to_traits(device);
    const GilReleased released;  // it may log
    return tunable(kernel).explain(problem, traits);
}

void attempt(const std::string& kernel, const std::string& problem, const std::string& choice, const py::dict& device) {
    const jit::DeviceTraits traits = to_traits(device);
    const GilReleased released;  // a thread that reads winners may hold the lock and wait for the GIL to log
    tunable(kernel).attempt(problem, choice, traits);
}

void forget() {
    for (const Tunable& one : tunables()) one.forget();
}

py::dict store(const std::string& kernel, const std::string& problem, const py::dict& device, const std::string& choice,
               double us, const std::string& heuristic, double heuristic_us) {
    const jit::DeviceTraits traits = to_traits(device);
    std::string file, why_not;
    {
        const GilReleased released;
        const jit::TunedEntry entry{kernel,
                                    problem,
                                    choice,
                                    heuristic,
                                    us,
                                    heuristic_us,
                                    traits.name,
                                    traits.multiprocessors,
                                    tunable(kernel).version()};
        const jit::TunedStore place = jit::TunedStore::to_write();
        why_not = place.write(entry);
        if (why_not.empty()) file = place.path_of(entry).string();
        forget();
    }
    return py::dict("file"_a = to_python(file), "why_not"_a = to_python(why_not));
}

py::dict list() {
    std::vector<jit::TunedFile> files;
    std::string folder;
    std::map<std::string, std::string> versions;
    {
        const GilReleased released;
        const jit::TunedStore place = jit::TunedStore::to_read();
        folder = place.folder().string();
        files = place.list();
        for (const Tunable& one : tunables()) versions[one.kernel] = one.version();
    }
    py::list entries;
    for (const jit::TunedFile& found : files) {
        py::dict one("file"_a = to_python(found.file), "problem"_a = to_python(found.problem), "entry"_a = py::none());
        if (found.entry) {
            const jit::TunedEntry& entry = *found.entry;
            one["entry"] =
                py::dict("kernel"_a = entry.kernel, "problem"_a = entry.problem, "choice"_a = entry.choice, "us"_a = entry.us,
                         "heuristic"_a = entry.heuristic, "heuristic_us"_a = entry.heuristic_us, "device"_a = entry.device,
                         "multiprocessors"_a = entry.multiprocessors, "version"_a = entry.version);
        }
        entries.append(one);
    }
    return py::dict("folder"_a = to_python(folder), "versions"_a = versions, "files"_a = entries);
}

bool remove(const std::filesystem::path& file) {
    const GilReleased released;
    const bool removed = jit::TunedStore::to_read().remove(file.string());
    forget();
    return removed;
}

}  // namespace

void define_tuning(py::module_& module) {
    module.def("tuned_candidates", &candidates, "kernel"_a, "problem"_a, "device"_a,
               "The choices that are right for a problem, the heuristic's own first.");
    module.def("tuned_explain", &explain, "kernel"_a, "problem"_a, "device"_a,
               "What decides about a problem on a device, and why: a stored winner, or the heuristic.");
    module.def("tuned_attempt", &attempt, "kernel"_a, "problem"_a, "choice"_a, "device"_a,
               "Lets this choice, and no stored one, decide about the problem on a device, until tuned_forget().");
    module.def(
        "tuned_attempted", [](const std::string& kernel, int device) { return tunable(kernel).attempted(device); }, "kernel"_a,
        "device"_a, "Whether what is attempted decided a call.");
    module.def("tuned_forget", &forget, py::call_guard<GilReleased>(), "Ends attempts; the next call reads what is stored.");
    module.def("tuned_store", &store, "kernel"_a, "problem"_a, "device"_a, "choice"_a, "us"_a, "heuristic"_a, "heuristic_us"_a,
               "Stores a winner beside the kernel cache: the file, or why it could not be kept.");
    module.def("tuned_list", &list,
               "What is stored: the folder, every file, and by kernel the version whose winners decide now.");
    module.def("tuned_remove", &remove, "file"_a, "Removes one file of tuned_list(); whether it was there.");
}

}  // namespace gdn_cuda
