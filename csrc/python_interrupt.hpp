// Python signals and exceptions during long C++ calls, and the end of the interpreter during one.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

// Throws the current Python exception as a C++ exception that every pybind11 module, of any release, torch's dispatcher
// included, converts back. Needs the GIL; catching it does not.
[[noreturn]] void throw_python_error();

// Calls a log sink, which may raise: on Python's main thread the exception may come from a signal's handler, so it is kept,
// and raised at the next interruption point or when the C++ call returns; on other threads it is reported as unraisable.
// Needs the GIL.
void call_sink(pybind11::handle sink, pybind11::handle arguments);

void define_interrupts(pybind11::module_& module);

}  // namespace gdn_cuda
