// Keeps a memory range resident in L2 for a stream's kernels: an access-policy window, and L2 set aside for it.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace gdn_cuda::jit {

// The largest window on a device, in bytes; 0 if it cannot set L2 aside.
std::size_t most_l2_window_bytes(int ordinal);

// Active from construction to release(), which restores the stream's previous attribute. One per stream.
class L2Window {
  public:
    // Throws an Error if the device lacks access-policy windows, the range is too large, the stream already has a window of
    // ours, or it is capturing, since the graph would keep the window after release().
    L2Window(int ordinal, CUstream stream, const void* base, std::size_t bytes);
    ~L2Window();
    L2Window(const L2Window&) = delete;
    L2Window& operator=(const L2Window&) = delete;

    void release();  // later calls do nothing

  private:
    int ordinal_;
    CUstream stream_;
    std::size_t bytes_;
    CUstreamAttrValue before_{};
    bool held_ = false;
};

}  // namespace gdn_cuda::jit
