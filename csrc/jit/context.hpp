// The CUDA context that kernels are loaded into, and how loading avoids breaking graph captures of other threads.
#pragma once

#include "driver.hpp"

namespace gdn_cuda::jit {

bool have_context(const Driver& cuda);  // whether this thread has a current context

// The device's primary context, which torch uses too: retained once per device and released at exit.
CUcontext primary_context(const Driver& cuda, int ordinal);
void use_primary_context(const Driver& cuda, int ordinal);  // makes it current in this thread
void release_primary_contexts();

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
