// The GIL in C++, safe while the interpreter ends.
//
// From then on, a daemon thread that wants the GIL never gets it: Python 3.14 blocks the thread, and earlier releases call
// pthread_exit(), which unwinds its stack as an exception would. That unwinding must pass neither a destructor, which is
// noexcept, nor objects that need the GIL to be destroyed. So these functions catch it in the frame that called Python, and
// block the thread until the process ends.
#pragma once

#include <pybind11/pybind11.h>

namespace gdn_cuda {

[[noreturn]] void block_this_thread();

bool holds_gil();
bool is_finalizing();
bool on_main_thread();  // Python's main thread, the only one that runs signal handlers

// Gives up the GIL, which this thread must hold.
class GilReleased {
  public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    ~GilReleased();
    GilReleased(const GilReleased&) = delete;
    GilReleased& operator=(const GilReleased&) = delete;

  private:
    PyThreadState* state_;
};

// Takes the GIL in any thread. False in threads that Python does not know, once it ends: it cannot register them any more.
class GilHeld {
  public:
    GilHeld();
    ~GilHeld();
    GilHeld(const GilHeld&) = delete;
    GilHeld& operator=(const GilHeld&) = delete;
    explicit operator bool() const { return how_ != How::refused; }

  private:
    enum class How { refused, had_it, restored, registered } how_ = How::refused;
    PyGILState_STATE state_{};
};

// callable(*arguments), a new reference; null if it raised. Needs the GIL.
PyObject* call_python(PyObject* callable, PyObject* arguments);

// Called in the thread that ends Python, with the GIL: afterwards GilHeld registers no thread.
void refuse_new_threads();
bool ends_python();  // whether this thread is that one

void define_gil();

}  // namespace gdn_cuda
