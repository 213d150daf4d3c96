// The part of gdn_cuda._C that the command `explain` uses.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

void define_explanation(pybind11::module_& module);

}  // namespace gdn_cuda
