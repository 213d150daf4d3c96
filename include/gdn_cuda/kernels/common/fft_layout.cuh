// Where fft.cuh keeps numbers in shared memory, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

inline constexpr int kFftEach = 8;  // numbers a thread

// Eight numbers, then a gap: strides of 1, 2, 4, 8 and more all meet different banks.
GDN_HOST_DEVICE constexpr int fft_padded(int at) {
    return at + at / kFftEach;
}

}  // namespace gdn_cuda
