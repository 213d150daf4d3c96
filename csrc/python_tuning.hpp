// The part of gdn_cuda._C that the command `tune` uses.
#pragma once

#include <pybind11/pybind11.h>

#include "jit/device.hpp"

namespace gdn_cuda {

// Inverse of what driver() and device_traits_for_arch() return to Python.
jit::DeviceTraits to_traits(const pybind11::dict& from);

void define_tuning(pybind11::module_& module);

}  // namespace gdn_cuda
