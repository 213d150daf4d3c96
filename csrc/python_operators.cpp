#include "python_operators.hpp"

#include <dlfcn.h>

#include "launch/memory_limit.hpp"
#include "limits.hpp"
#include "operators/last_references.hpp"
#include "python_gil.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {
namespace {

bool torch_takes_gil() {
    void* const c10 = ::dlopen("libc10.so", RTLD_NOLOAD | RTLD_NOW);
    return c10 != nullptr && ::dlsym(c10, "_ZNK3c1010TensorImpl15decref_pyobjectEv") != nullptr;
}

}  // namespace

void define_for_operators(py::module_& module) {
    if (torch_takes_gil())
        drop_arguments_with([](void (*drop)(void*), void* arguments) {
            const GilHeld gil;
            drop(arguments);
        });
    const Limits all = limits();
    module.attr("GDN_CHUNK") = all.gdn_chunk;
    module.attr("TOEPLITZ_LONGEST_GENERAL") = all.toeplitz_general;
    module.attr("TOEPLITZ_LONGEST_POSITIVE") = all.toeplitz_positive;
    module.def("most_result_bytes", &most_result_bytes, "on_gpu"_a,
               "The most bytes that a result may have, on a GPU or in this machine's memory.");
}

}  // namespace gdn_cuda
