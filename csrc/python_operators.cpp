#include "python_operators.hpp"

#include "launch/memory_limit.hpp"
#include "limits.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {

void define_for_operators(py::module_& module) {
    const Limits all = limits();
    module.attr("GDN_CHUNK") = all.gdn_chunk;
    module.attr("TOEPLITZ_LONGEST_GENERAL") = all.toeplitz_general;
    module.attr("TOEPLITZ_LONGEST_POSITIVE") = all.toeplitz_positive;
    module.def("most_result_bytes", &most_result_bytes, "on_gpu"_a,
               "The most bytes that a result may have, on a GPU or in this machine's memory.");
}

}  // namespace gdn_cuda
