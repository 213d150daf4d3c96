// The part of gdn_cuda._C that the operators' Python code uses.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

void define_for_operators(pybind11::module_& module);

}  // namespace gdn_cuda
