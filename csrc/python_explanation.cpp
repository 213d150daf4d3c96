#include "python_explanation.hpp"

#include <memory>

#include "launch/explanation.hpp"
#include "python_tuning.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {
namespace {

py::list steps(const Explanation& explanation) {
    py::list all;
    for (const ExplainedStep& step : explanation.steps) {
        py::dict one("kernel"_a = step.kernel, "configuration"_a = step.configuration, "reason"_a = step.reason);
        const auto& grid = step.shape.grid;
        one["grid"] = py::make_tuple(grid[0], grid[1], grid[2]);
        one["threads"] = step.shape.threads;
        one["shared_bytes"] = step.shape.shared_bytes;
        one["cluster"] = step.shape.cluster;
        all.append(one);
    }
    return all;
}

// A context manager for Python's `with`; the same thread must enter and leave it.
struct Explaining {
    jit::DeviceTraits device;
    std::unique_ptr<Explanation> explanation;
};

}  // namespace

void define_explanation(py::module_& module) {
    py::class_<Explaining>(
        module, "Explaining",
        "A context in which this thread's operators, called with meta tensors, record what they would launch "
        "on a device. Ordinal -1: one that is not in this machine.")
        .def(py::init(
                 [](const py::dict& device) { return std::make_unique<Explaining>(Explaining{to_traits(device), nullptr}); }),
             "device"_a)
        .def(
            "__enter__",
            [](Explaining& self) -> Explaining& {
                self.explanation = std::make_unique<Explanation>(self.device);
                return self;
            },
            py::return_value_policy::reference)
        .def("__exit__", [](Explaining& self, const py::args&) { self.explanation.reset(); })
        .def(
            "steps", [](const Explaining& self) { return self.explanation ? steps(*self.explanation) : py::list(); },
            "Launches, and remarks on them, which have no kernel; in order.");
}

}  // namespace gdn_cuda
