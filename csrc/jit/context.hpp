// The context that kernels are loaded into, and how loading leaves CUDA graph captures of other threads alone.
#pragma once

#include "driver.hpp"

namespace gdn_cuda::jit {

bool have_context(const Driver& cuda);  // whether this thread has one

// The device's primary context, which torch works in too: retained once a device, and released when the process ends.
CUcontext primary_context(const Driver& cuda, int ordinal);
void use_primary_context(const Driver& cuda, int ordinal);  // in this thread, from now on
void release_primary_contexts();

// While a thread captures a CUDA graph in global mode, a call that may synchronize or allocate (loading a kernel does) fails in
// every other thread, and breaks the capture. In relaxed mode, for which this thread asks while this lives, it does neither.
class RelaxedCapture {
  public:
    explicit RelaxedCapture(const Driver& cuda);
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    const Driver& cuda_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // after the exchange: the mode before
};

}  // namespace gdn_cuda::jit
