#include "python_operators.hpp"

#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/limits.hpp"
#include "kernels/memory_limit.hpp"
#include "operators/overlap.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace gdn_cuda {
namespace {

// A tensor's address, sizes, strides in elements, and bytes of an element.
using Layout = std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>, int64_t>;

Strided to_strided(const Layout& layout) {
    const auto& [address, sizes, strides, element_bytes] = layout;
    return {reinterpret_cast<const void*>(address), sizes.data(), strides.data(), static_cast<int>(sizes.size()),
            element_bytes};
}

}  // namespace

void define_for_operators(py::module_& module) {
    const Limits all = limits();
    module.attr("GDN_CHUNK") = all.gdn_chunk;
    module.attr("TOEPLITZ_LONGEST_GENERAL") = all.toeplitz_general;
    module.attr("TOEPLITZ_LONGEST_POSITIVE") = all.toeplitz_positive;
    module.def(
        "share_memory", [](const Layout& one, const Layout& other) { return share_memory(to_strided(one), to_strided(other)); },
        "one"_a, "other"_a, "Whether two tensors share a byte, each given as (address, sizes, strides, bytes of an element).");
    module.def("most_result_bytes", &most_result_bytes, "on_gpu"_a,
               "The most bytes that a result may have, on a GPU or in this machine's memory.");
}

}  // namespace gdn_cuda
