// Python's signals and exceptions in calls that C++ waits in.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

// Throws the Python exception that is set as a C++ one that every module made with pybind11 turns back into it, torch's
// dispatcher included, whichever release of pybind11 each was made with. Needs the GIL; whoever catches it does not.
[[noreturn]] void throw_python_error();

void define_interrupts(pybind11::module_& module);

}  // namespace gdn_cuda
