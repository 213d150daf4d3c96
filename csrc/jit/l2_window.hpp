// Memory that the kernels of a stream shall find in L2: an access-policy window, and room set aside for it.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace gdn_cuda::jit {

// What a window may cover on a device: 0 where it cannot set L2 aside.
std::size_t most_l2_window_bytes(int ordinal);

// From construction to release(). One a stream; the attribute that the stream had comes back.
class L2Window {
  public:
    // Throws an Error where the device has no such thing, the range is too large, the stream has a window of ours, or it is
    // capturing: a graph would keep the window without its release.
    L2Window(int ordinal, CUstream stream, const void* base, std::size_t bytes);
    ~L2Window();
    L2Window(const L2Window&) = delete;
    L2Window& operator=(const L2Window&) = delete;

    void release();  // once; then nothing

  private:
    int ordinal_;
    CUstream stream_;
    std::size_t bytes_;
    CUstreamAttrValue before_{};
    bool held_ = false;
};

}  // namespace gdn_cuda::jit
