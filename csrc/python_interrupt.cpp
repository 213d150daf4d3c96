#include "python_interrupt.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "jit/interrupt.hpp"
#include "jit/log.hpp"
#include "jit/nvrtc.hpp"
#include "jit/prefetch.hpp"
#include "python_gil.hpp"

namespace py = pybind11;

namespace gdn_cuda {
namespace {

// Every module built with pybind11 exports builtin_exception, and set_error() is virtual, so any of them that catches this
// calls our override. py::error_already_set has a different layout in each release.
class PythonError : public py::builtin_exception {
  public:
    explicit PythonError(py::error_already_set error)
        : py::builtin_exception(error.what()), error_(new py::error_already_set(std::move(error)), forget) {}

    void set_error() const override {
        PyErr_Restore(error_->type().inc_ref().ptr(), error_->value().inc_ref().ptr(), error_->trace().inc_ref().ptr());
    }

  private:
    static void forget(py::error_already_set* error) {
        if (const GilHeld gil; gil) delete error;  // else it ends with the process
    }

    std::shared_ptr<py::error_already_set> error_;
};

// What a log sink raised on Python's main thread, until it can be raised there. Guarded by the GIL, used by that thread alone.
struct Kept {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    bool in_sink = false;

    void restore() {
        PyErr_Restore(std::exchange(type, nullptr), std::exchange(value, nullptr), std::exchange(trace, nullptr));
    }
};
Kept kept;

// Python calls this on its main thread, between two instructions: so as soon as our call has returned.
int raise_kept(void*) {
    if (kept.type == nullptr || kept.in_sink) return 0;
    kept.restore();
    return -1;
}

// Whether Python made this thread, as of the last time that it could be asked.
thread_local bool thread_of_python = false;

bool ends_with_python() {
    return thread_of_python && !ends_python();
}

// At every interruption point. Takes the GIL on the main thread alone, as no other thread runs handlers of signals.
void attend() {
    if (Py_IsInitialized() == 0 || is_finalizing()) {
        // The call would return to a caller that asks for the GIL: torch's dispatcher aborts the process then.
        if (ends_with_python()) block_this_thread();
        return;
    }
    thread_of_python = PyGILState_GetThisThreadState() != nullptr;
    if (thread_of_python && holds_gil()) {  // give way, since the thread that we wait for may need it
        const GilReleased others_first;
    }
    if (!on_main_thread()) return;
    const GilHeld gil;
    if (!gil) return;
    if (kept.type != nullptr) {
        kept.restore();
        throw_python_error();
    }
    if (PyErr_CheckSignals() != 0) throw_python_error();
}

void before_nvrtc() {
    if (ends_with_python()) block_this_thread();
}

// No thread may be inside NVRTC at exit(), which destroys what it uses: waits for those that are, callers or not, and stops
// Python's other threads before they enter it. Another Ctrl-C ends the process without exit().
void before_exit() {
    refuse_new_threads();
    const GilReleased others_go_on;
    jit::set_log_sink({});
    jit::call_before_nvrtc(before_nvrtc);
    jit::keep_background_out_of_nvrtc();
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

}  // namespace

void throw_python_error() {
    throw PythonError(py::error_already_set());
}

void call_sink(py::handle sink, py::handle arguments) {
    const bool main = on_main_thread();
    const bool outer = main && std::exchange(kept.in_sink, true);
    PyObject* result = call_python(sink.ptr(), arguments.ptr());
    if (main) kept.in_sink = outer;
    if (result == nullptr && main && kept.type == nullptr)
        PyErr_Fetch(&kept.type, &kept.value, &kept.trace);
    else if (result == nullptr)
        py::error_already_set().discard_as_unraisable("gdn_cuda log sink");
    Py_XDECREF(result);
    if (main && kept.type != nullptr) Py_AddPendingCall(raise_kept, nullptr);
}

void define_interrupts(py::module_& module) {
    define_gil();
    jit::set_interrupt_hook(attend);
    py::module_::import("atexit").attr("register")(py::cpp_function(before_exit));
    jit::allow_prefetch();

    py::class_<std::atomic<bool>, std::shared_ptr<std::atomic<bool>>>(module, "Cancellation",
                                                                      "Cancels the compilations that it was given to.")
        .def(py::init([] { return std::make_shared<std::atomic<bool>>(false); }))
        .def("cancel", [](std::atomic<bool>& flag) { flag.store(true); });
}

}  // namespace gdn_cuda
