// The CUDA context that kernels are loaded into, and how loading avoids breaking graph captures of other threads.
#pragma once

#include "driver.hpp"

namespace gdn_cuda::jit {

bool have_context(const Driver& cuda);  // whether this thread has a current context

// The device's primary context, which torch uses too: retained once per device and released at exit.
CUcontext primary_context(const Driver& cuda, int ordinal);
void use_primary_context(const Driver& cuda, int ordinal);  // makes it current in this thread
void release_primary_contexts();
bool is_first_call_of_thread();  // true once in every thread

// A call of the driver that wants a context: a new thread has none (torch sets its device lazily), and later somebody may take
// it away.
CUresult in_context(const Driver& cuda, int ordinal, const auto& call) {
    if (is_first_call_of_thread() && !have_context(cuda)) use_primary_context(cuda, ordinal);
    const CUresult result = call();
    if (result != CUDA_ERROR_INVALID_CONTEXT) [[likely]]
        return result;
    use_primary_context(cuda, ordinal);
    return call();
}

// Puts this thread into relaxed capture mode for its lifetime. While any thread captures a CUDA graph in global mode, calls
// that may synchronize or allocate (such as loading a kernel) fail in all other threads and break the capture; not so in
// relaxed mode.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& cuda);
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    const Driver& cuda_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // after the exchange: the previous mode
};

}  // namespace gdn_cuda::jit
