// The part of gdn_cuda._C that the command `tune` is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

void define_tuning(pybind11::module_& module);

}  // namespace gdn_cuda
