#include "python_gil.hpp"

#include <cxxabi.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "jit/fork.hpp"

namespace py = pybind11;

namespace gdn_cuda {
namespace {

std::atomic<pthread_t> main_thread{};
std::atomic<pthread_t> ending_thread{};
std::atomic<bool> refused{false};
std::atomic<int> registering{0};  // threads in the constructor of GilHeld that Python does not know yet

const jit::InForkedChild in_child([] {
    main_thread.store(::pthread_self());  // as Python does
    registering.store(0);
});

// `call`, which Python may end by pthread_exit().
template <class Call>
auto or_block(Call&& call) {
    try {
        return call();
    } catch (abi::__forced_unwind&) {
        block_this_thread();
    }
}

}  // namespace

void block_this_thread() {
    for (;;) ::pause();
}

bool holds_gil() {
    const PyThreadState* mine = PyGILState_GetThisThreadState();
    return mine != nullptr && py::detail::get_thread_state_unchecked() == mine;
}

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

bool on_main_thread() {
    return ::pthread_equal(main_thread.load(), ::pthread_self()) != 0;
}

GilReleased::~GilReleased() {
    or_block([this] { PyEval_RestoreThread(state_); });
}

GilHeld::GilHeld() {
    if (PyThreadState* mine = PyGILState_GetThisThreadState()) {
        how_ = py::detail::get_thread_state_unchecked() == mine ? How::had_it : How::restored;
        if (how_ == How::restored) or_block([=] { PyEval_RestoreThread(mine); });
        return;
    }
    ++registering;
    if (Py_IsInitialized() != 0 && !refused.load()) {
        state_ = PyGILState_Ensure();
        how_ = How::registered;
    }
    --registering;
}

GilHeld::~GilHeld() {
    if (how_ == How::refused) return;
    if (!holds_gil()) block_this_thread();  // Python ends this thread, from a call that call_python() did not make
    if (how_ == How::registered) PyGILState_Release(state_);
    if (how_ == How::restored) PyEval_SaveThread();
}

PyObject* call_python(PyObject* callable, PyObject* arguments) {
    return or_block([=] { return PyObject_CallObject(callable, arguments); });
}

void refuse_new_threads() {
    ending_thread.store(::pthread_self());
    refused.store(true);
    const GilReleased others_first;
    while (registering.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool ends_python() {
    return refused.load() && ::pthread_equal(ending_thread.load(), ::pthread_self()) != 0;
}

void define_gil() {
    const auto ident = py::module_::import("threading").attr("main_thread")().attr("ident");
    main_thread.store(static_cast<pthread_t>(ident.cast<unsigned long>()));
}

}  // namespace gdn_cuda
