#include "python_operators.hpp"

#include "kernels/limits.hpp"

namespace py = pybind11;

namespace gdn_cuda {

void define_for_operators(py::module_& module) {
    const Limits all = limits();
    module.attr("GDN_CHUNK") = all.gdn_chunk;
    module.attr("TOEPLITZ_LONGEST_GENERAL") = all.toeplitz_general;
    module.attr("TOEPLITZ_LONGEST_POSITIVE") = all.toeplitz_positive;
}

}  // namespace gdn_cuda
