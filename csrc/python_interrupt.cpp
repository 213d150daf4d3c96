#include "python_interrupt.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "jit/interrupt.hpp"
#include "jit/nvrtc.hpp"

namespace py = pybind11;

namespace gdn_cuda {
namespace {

// Every module built with pybind11 exports builtin_exception, and set_error() is virtual, so any of them that catches this
// calls our override. py::error_already_set has a different layout in each release.
class PythonError : public py::builtin_exception {
  public:
    explicit PythonError(py::error_already_set error)
        : py::builtin_exception(error.what()), error_(std::make_shared<py::error_already_set>(std::move(error))) {}

    void set_error() const override {
        PyErr_Restore(error_->type().inc_ref().ptr(), error_->value().inc_ref().ptr(), error_->trace().inc_ref().ptr());
    }

  private:
    std::shared_ptr<py::error_already_set> error_;  // its destructor takes the GIL
};

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

// Runs handlers of pending signals; only Python's main thread has any.
void check_signals() {
    if (!Py_IsInitialized() || is_finalizing() || PyGILState_GetThisThreadState() == nullptr) return;
    if (PyGILState_Check() != 0) {  // called with the GIL held: give way, since the thread we wait for may need it
        py::gil_scoped_release others_first;
    }
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw_python_error();
}

// Waits until no compile of an interrupted caller is inside NVRTC, which does not survive exit(). Another Ctrl-C ends the
// process without exit().
void before_exit() {
    {
        py::gil_scoped_release others_go_on;
        try {
            while (jit::inside_nvrtc() > 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                jit::interruption_point();
            }
        } catch (...) {
            constexpr int kInterrupted = 130;  // the shells' code for SIGINT
            ::_exit(kInterrupted);
        }
    }
    jit::set_interrupt_hook({});
}

}  // namespace

void throw_python_error() {
    throw PythonError(py::error_already_set());
}

void define_interrupts(py::module_& module) {
    jit::set_interrupt_hook(check_signals);
    py::module_::import("atexit").attr("register")(py::cpp_function(before_exit));

    py::class_<std::atomic<bool>, std::shared_ptr<std::atomic<bool>>>(module, "Cancellation",
                                                                      "Cancels the compilations that it was given to.")
        .def(py::init([] { return std::make_shared<std::atomic<bool>>(false); }))
        .def("cancel", [](std::atomic<bool>& flag) { flag.store(true); });
}

}  // namespace gdn_cuda
