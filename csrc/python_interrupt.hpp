// Python signals and exceptions during long C++ calls.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

// Throws the current Python exception as a C++ exception that every pybind11 module, of any release, torch's dispatcher
// included, converts back. Needs the GIL; catching it does not.
[[noreturn]] void throw_python_error();

void define_interrupts(pybind11::module_& module);

}  // namespace gdn_cuda
